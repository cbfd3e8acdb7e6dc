"""The version of the package, for whoever writes it into a file without importing the front door."""

__version__ = "0.2.0"

"""fastntk: make a fine-tuned image classifier forget."""

__version__ = "0.1.0"

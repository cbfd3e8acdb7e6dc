"""The baselines people compare with, a small file each; what several of them share is in ``common``."""

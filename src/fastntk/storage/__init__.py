"""Runs and results on disk: verified folders that appear whole or not at all."""

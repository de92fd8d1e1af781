"""Figures of the code paths that need a GPU."""

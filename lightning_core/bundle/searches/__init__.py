"""Searches: their files, and the spaces of their hyper-parameters."""

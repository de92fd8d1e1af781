"""Asking the code of others without changing what a training does."""

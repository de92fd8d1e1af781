"""Searches with a deadline: which trials of a hyper-parameter search run (pure)."""

"""Searches for hyper-parameters with a deadline: recorded trials, those who decide about them, and how they compare."""

"""The store of earlier runs, and the choice of those that a new job gets."""

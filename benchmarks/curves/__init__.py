"""Bundles of jobs drawn from recorded curves, and played in virtual time."""

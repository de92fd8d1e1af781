"""Bundles of jobs drawn from recorded curves, played in virtual time."""

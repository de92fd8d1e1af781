"""Mutation testing of the pure rooms: ``python -m tests.mutation MODULE...``."""

"""Policies of the scheduler on recorded curves, in virtual time."""

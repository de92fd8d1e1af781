"""Plays recorded loss curves to the scheduler that ships, in virtual time."""

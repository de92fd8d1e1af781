"""Tests of ``worker``."""

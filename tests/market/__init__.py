"""Tests of ``market``."""

"""Tests of ``view``."""

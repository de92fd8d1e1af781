"""Tests of ``bundle``."""

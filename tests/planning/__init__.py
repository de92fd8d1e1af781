"""Tests of ``planning``."""

"""Tests of ``simulation``."""

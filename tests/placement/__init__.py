"""Tests of ``placement``."""

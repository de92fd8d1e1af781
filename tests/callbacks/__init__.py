"""Tests of ``callbacks``."""

"""Tests of ``scheduler``."""

"""Tests of ``node``."""

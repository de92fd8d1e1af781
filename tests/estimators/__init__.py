"""Tests of ``estimators``."""

"""Tests: tables in, lists out; the test holds the clock; real Ray, Lightning and training where they are the point."""

"""Tests: table in, list out; the test holds the clock; real Ray, Lightning and training where that is the point."""

"""Recorded trainings, trained live in the bundles of the papers."""

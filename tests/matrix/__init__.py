"""Trainings of many kinds, with the callback and without it, on one rank and on several."""

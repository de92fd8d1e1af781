"""Trainings, policies and plays of a cluster of several kinds of GPUs."""

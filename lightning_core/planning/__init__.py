"""Shared building blocks of policies and planners: feasibility, admission, reservations, chances and ramps. Pure."""

"""Two trainings at once on one device: what that does in place of turns."""

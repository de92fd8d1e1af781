"""The clocks of the scheduler's process."""

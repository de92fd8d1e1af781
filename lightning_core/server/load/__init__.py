"""Load control: keeps the scheduler responsive under many jobs."""

"""What keeps the scheduler answering at once under many jobs."""

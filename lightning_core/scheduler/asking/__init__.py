"""What people and controllers ask of a job, and what comes of it."""

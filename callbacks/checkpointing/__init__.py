"""Writing and reading the checkpoints of a training."""

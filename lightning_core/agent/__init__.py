"""The scheduler's side of a training process: reports, steering and records, for any training loop."""

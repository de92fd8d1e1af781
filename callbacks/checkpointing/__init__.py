"""How the checkpoints of a training are written and read."""

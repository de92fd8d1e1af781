"""The curves of earlier runs: what is kept of them, and which of them a new job is given."""

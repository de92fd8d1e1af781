"""The pool on Ray: pool manager, worker slots, launcher, monitor, workers; runs and the head."""

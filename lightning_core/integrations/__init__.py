"""What other tools take: a pruner for Optuna, a scheduler for Ray Tune. Each works alone, without a pool."""

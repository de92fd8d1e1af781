"""Integrations with other tools: a pruner for Optuna, a scheduler for Ray Tune. Each works alone, without a pool."""

"""Pools whose devices differ: which kind and machine each is of, how fast jobs are on each, and the plan by kind."""

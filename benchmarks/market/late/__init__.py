"""The public benchmark of "Can't Be Late" (Wu et al., NSDI 2024): a job on one node that must meet its deadline."""

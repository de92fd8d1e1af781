"""Runs of bundles on a spot market: the options, and the run with its ledger."""

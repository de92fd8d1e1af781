"""The market while a run is on it: plans, nodes and the ledger, interval by interval."""

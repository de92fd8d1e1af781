"""What runs a bundle on a spot market: its options, and the run with its ledger."""

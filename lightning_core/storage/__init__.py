"""Crash-safe storage: the journal, atomic files, and checkpoints with their manifests."""

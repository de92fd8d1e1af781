"""What survives: the journal, files that are written whole, checkpoints and their manifests."""

"""What survives a crash: the journal, atomic files, and checkpoints with their manifests."""

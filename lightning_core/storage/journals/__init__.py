"""The journal of a scheduler: events and snapshots on disk, and their readers."""

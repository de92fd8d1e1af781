"""The journal of a scheduler: events and snapshots on the disk, and what reads them again."""

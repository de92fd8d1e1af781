"""What a training tells its scheduler: its losses, its progress and where it will end, and how they get there."""

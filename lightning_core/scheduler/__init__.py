"""The scheduler: events in, answers out. Pure."""

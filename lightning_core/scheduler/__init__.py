"""The scheduler: events in, answers out; pure."""

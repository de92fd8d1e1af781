"""Who may use a pool."""

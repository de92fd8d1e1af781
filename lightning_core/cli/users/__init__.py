"""Access of users to a pool."""

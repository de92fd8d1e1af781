"""The jobs of a scheduler as a table, and its form as JSON values."""

"""The jobs of a scheduler as tables: those that it plans, those that are over, and their form as JSON values."""

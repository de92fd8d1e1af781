"""Commands that give a pool a placement plan, and tell it of demand."""

"""Routes of the further pages: comparison, earlier times, market, and what-if."""

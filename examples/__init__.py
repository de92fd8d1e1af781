"""Runnable examples; each file says what it shows."""

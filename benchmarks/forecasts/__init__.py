"""How good forecasts are, and what they cost."""

"""Policies of the spot market, on recorded prices and live."""

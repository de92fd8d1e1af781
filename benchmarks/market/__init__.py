"""Spot market policies, on recorded prices and live."""

"""Plots and tables of a market, for the report and the page."""

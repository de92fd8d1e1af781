"""What is drawn of a market: its plots, and the tables of the report and the page."""

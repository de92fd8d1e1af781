"""Exact plans by dynamic programming: windows of forecasts, the optimum in hindsight, pairs of node counts."""

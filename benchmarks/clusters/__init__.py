"""Whole clusters in virtual time: a published trace, edge and cloud."""

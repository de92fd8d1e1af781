"""Whole clusters in virtual time: a published trace of jobs, and edge and cloud."""

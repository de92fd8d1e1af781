"""Reporting of losses, progress and the end of a training to its scheduler."""

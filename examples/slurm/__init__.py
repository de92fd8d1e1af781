"""Recipes for Slurm, and a Slurm on this machine to try them on."""

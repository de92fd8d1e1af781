"""Clients: how a training process speaks with its scheduler. One file each."""

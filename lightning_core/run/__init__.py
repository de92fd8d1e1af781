"""The folder of a run: its bundle, the pool that its jobs are in, and how it is followed to its end."""

"""Who brings nodes and takes them away, and what a market offers."""

"""Several zones, regions and types of node in one plan: where the nodes are that a spot policy wants."""

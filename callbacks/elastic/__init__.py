"""Training on a number of devices that may change: steps of micro-batches, and a loader that shares them out."""

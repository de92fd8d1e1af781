"""Training on a changing number of devices: steps made of micro-batches, and a loader that distributes them."""

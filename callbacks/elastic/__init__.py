"""Training on a changing number of devices: optimiser steps made of micro-batches, and a loader that distributes them."""

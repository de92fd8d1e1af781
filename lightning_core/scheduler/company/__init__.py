"""Two at once: which jobs train beside which on one device, and how fast they are there."""

"""Parts that run on a node that trains: device arbiter, CPU quota, claims on cores, signals."""

"""What runs on a machine that trains: device arbiter, CPU quota, claims on cores, signals."""

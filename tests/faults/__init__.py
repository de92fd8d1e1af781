"""Faults: processes killed, disks full, messages lost, guards removed."""

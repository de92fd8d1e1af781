"""Real trainings on this machine: shares, devices, resizes and what they cost."""

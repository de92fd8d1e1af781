"""Obeying the scheduler from within a training: locking the device, throttling, holding, stopping and leaving."""

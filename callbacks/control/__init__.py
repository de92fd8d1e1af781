"""How a training obeys its scheduler: locking the device, throttling, holding, stopping and leaving."""

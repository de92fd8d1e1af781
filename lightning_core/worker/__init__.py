"""Parts that run in a worker's process: the worker, its process group, the training, the cause of its end."""

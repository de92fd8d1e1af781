"""Reading a Trainer: its end, its learning rates, its logged metrics and its own callbacks."""

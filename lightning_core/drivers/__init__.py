"""Who drives the scheduler: it lives in a Ray actor (ray_actor) or beside one Trainer (local)."""

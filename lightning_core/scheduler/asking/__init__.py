"""Controllers in the scheduler: their view of the pool, and forecasts of it for them."""

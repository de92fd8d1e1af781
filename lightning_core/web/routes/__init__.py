"""Pages of their own beside the jobs and the timeline: their routes, and what these need."""

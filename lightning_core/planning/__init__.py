"""What several policies and planners share: feasibility, admission, reservations, chances and ramps. Pure."""

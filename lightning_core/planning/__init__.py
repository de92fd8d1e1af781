"""What several policies and planners stand on: who fits, who is kept, when it would end. Pure."""

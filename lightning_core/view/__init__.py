"""What people look at: progress in the terminal, the summary, pictures."""

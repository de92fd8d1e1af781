"""What matters to a pool on this machine: each check reads one fact and says what it means, and what to do."""

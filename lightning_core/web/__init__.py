"""What a pool says over HTTP."""

"""The selector of spot policies: what it begins with, what it is told, and which policy a job gets."""

"""The scheduler's process, and the ways to it: Ray actor, socket server, clients, sessions, discovery."""

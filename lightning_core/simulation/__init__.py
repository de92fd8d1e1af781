"""The scheduler that ships, in virtual time: recorded loss curves are played to it."""

"""The controllers: what they are told and see, and what the pool would come to."""

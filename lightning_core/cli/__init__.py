"""The commands of ``lightning-core``."""

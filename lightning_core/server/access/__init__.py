"""Access control: identities and rights."""

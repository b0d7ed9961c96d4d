"""Identities, the tokens that prove them, and rights."""

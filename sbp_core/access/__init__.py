"""Identities, the tokens that prove them, and the rights that they have."""

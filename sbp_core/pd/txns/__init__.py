"""Transactions over range servers: decided, published, ended."""

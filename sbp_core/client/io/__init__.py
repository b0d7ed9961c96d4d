"""Connections, the calls on them, and the event loop of blocking clients."""

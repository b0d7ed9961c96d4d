"""Python generated from schemas/*.fbs by `make schemas`."""

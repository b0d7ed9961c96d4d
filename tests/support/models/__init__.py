"""Reference models: small, and right because they are small."""

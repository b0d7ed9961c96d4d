"""The driver side of a streaming read: how far each micro-batch goes, and what is said of it."""

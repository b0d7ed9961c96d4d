"""The driver side of a streaming read: how far each micro-batch goes. See `stream_reader`."""

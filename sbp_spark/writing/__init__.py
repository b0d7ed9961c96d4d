"""The sink: rows to streams, record batches to range servers, and one commit. See `sinks`."""

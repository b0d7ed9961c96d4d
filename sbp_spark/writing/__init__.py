"""The sink: rows to streams, record batches to range servers, and one decision for all of them."""

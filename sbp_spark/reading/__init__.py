"""Reading intervals of streams: finding, planning, fetching, decoding. See `input_partitions`."""

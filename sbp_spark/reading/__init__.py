"""Reading intervals of streams: which streams, from where to where, by which tasks, and how."""

"""Reading record batches, from sockets and from files of a log on this machine."""

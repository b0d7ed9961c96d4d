"""The operations of a client: which server to ask for what, without I/O of their own."""

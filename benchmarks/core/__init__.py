"""What needs no Spark: the log, the servers, their headers, and what too much work does to them."""

"""Measurements without Spark: the log, the servers, their headers, overload and attacks."""

"""The range server: hosts ranges of streams on one durable log, serves APPEND and FETCH."""

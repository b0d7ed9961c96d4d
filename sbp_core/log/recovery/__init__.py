"""A log that a crash tore or damage hit: opened, inspected, repaired."""

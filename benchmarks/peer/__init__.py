"""A Kafka broker by its jars: fetched, started, and asked for topics."""

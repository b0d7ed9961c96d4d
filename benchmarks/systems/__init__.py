"""The measured systems: the connector, Spark's ceilings, and Apache Kafka, behind one interface."""

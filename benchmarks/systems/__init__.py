"""What is measured: the connector, Spark's ceilings, and Apache Kafka, behind one interface."""

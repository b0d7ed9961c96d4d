"""Apache Kafka with Spark's own connector for it, measured beside the project's."""

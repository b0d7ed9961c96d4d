"""What is measured in Spark, each in a module of its own, and the list of all."""

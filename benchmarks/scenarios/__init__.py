"""The measurements in Spark, a module each, and the list of all."""

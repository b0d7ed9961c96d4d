"""Looking at, and changing, Spark's checkpoint of a query that reads streams."""

"""Reading and rewinding Spark's checkpoint of a query. Read `files` first, then `commands`."""

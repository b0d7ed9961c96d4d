"""How close the connector comes to what Spark itself can do for a Python source or sink."""

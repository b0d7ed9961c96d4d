"""Consumer groups of Kafka's protocol: members in memory, offsets as cursors of the cluster."""

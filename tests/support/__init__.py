"""What tests share: clusters, clients, disks, clocks, Spark sessions, models and faults."""

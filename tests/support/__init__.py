"""Clusters, clients, disks, clocks, Spark sessions, models and faults that tests share."""

"""Metrics of streaming queries for Prometheus: rows, durations, and how far each stream is behind.

from prometheus_client import REGISTRY
from sbp_spark.query_metrics import QueryMetrics

metrics = QueryMetrics(endpoint)
spark.streams.addListener(metrics)
REGISTRY.register(metrics)
"""

from sbp_spark.operations.prometheus_metrics import QueryMetrics

__all__ = ["QueryMetrics"]

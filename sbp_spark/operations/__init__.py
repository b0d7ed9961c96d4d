"""Tools for operators of queries: `sbp checkpoint`, the lag of queries, metrics, and Java.

Programs import `sbp_spark.lag`, `sbp_spark.query_metrics` and `sbp_spark.java`.
"""

"""The driver side of a streaming read: how far each micro-batch goes.

`stream_reader` has Spark's calls, and `query_run` the walk from one offset to the next. The walk
looks at the streams (`stream_watch`), settles losses (`loss_policy`), finds the backlog (`backlog`)
and admits a part of it (`admission`).
"""

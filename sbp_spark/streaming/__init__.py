"""The driver side of a streaming read: how far each micro-batch goes.

`stream_reader` has Spark's calls. Each looks at the streams (`stream_watch`), settles losses
(`loss_policy`), finds the records ahead (`micro_batch`), and admits some of them (`trigger`).
"""

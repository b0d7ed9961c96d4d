"""How far a streaming query is behind: by its progress, or as its servers know it at the moment.

    from sbp_spark.lag import LagListener, lag

The progress has the ends of the streams when its micro-batch began. With an endpoint the servers
are asked for the records since then, their age and estimated size.
"""

from sbp_spark.operations.query_lag import LagListener, StreamLag, lag, log_lag

__all__ = ["LagListener", "StreamLag", "lag", "log_lag"]

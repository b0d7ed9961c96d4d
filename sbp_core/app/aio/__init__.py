"""The client for applications, for asyncio."""

from sbp_core.app.aio.assignment import AsyncAssignment
from sbp_core.app.aio.cluster_connection import AsyncConnection, connect
from sbp_core.app.aio.consumer import AsyncConsumer
from sbp_core.app.aio.producer import AsyncProducer
from sbp_core.app.aio.transaction import AsyncTransaction

__all__ = [
    "AsyncAssignment",
    "AsyncConnection",
    "AsyncConsumer",
    "AsyncProducer",
    "AsyncTransaction",
    "connect",
]

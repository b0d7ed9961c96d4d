"""The client for applications: streams by name, records in and out.

`connect` gives a `Connection`, which makes producers, consumers and transactions. The classes for
asyncio are in `aio`, their facades for threads in `blocking`. `sbp_core.client` below them speaks
the protocol. What the classes decide without I/O is in the modules beside `aio`.
"""

from sbp_core.app.aio import (
    AsyncAssignment,
    AsyncConnection,
    AsyncConsumer,
    AsyncProducer,
    AsyncTransaction,
)
from sbp_core.app.blocking import Assignment, Connection, Consumer, Producer, Transaction, connect
from sbp_core.app.delivery import AsyncDelivery, Delivered, Delivery
from sbp_core.app.encoding import Rows
from sbp_core.app.positions import Start
from sbp_core.app.record import Batch, Record

__all__ = [
    "Assignment",
    "AsyncAssignment",
    "AsyncConnection",
    "AsyncConsumer",
    "AsyncDelivery",
    "AsyncProducer",
    "AsyncTransaction",
    "Batch",
    "Connection",
    "Consumer",
    "Delivered",
    "Delivery",
    "Producer",
    "Record",
    "Rows",
    "Start",
    "Transaction",
    "connect",
]

"""The client for applications: streams by name, records in and out.

`connect` gives a `Connection`, which makes producers, consumers and transactions. They are written
for asyncio, in `aio`; `blocking` has their facades for threads. They are over `sbp_core.client`,
which speaks the protocol; their decisions are in the modules beside them, without I/O.
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

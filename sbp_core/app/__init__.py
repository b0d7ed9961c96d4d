"""The client for applications: streams by name, records in and out.

`connect` gives a `Connection`, which makes producers, consumers and transactions. The classes for
asyncio are in `aio`, their facades for threads in `blocking`. `sbp_core.client` below them speaks
the protocol. The modules beside `aio` do no I/O.

A call walks through five files, and its answer comes back the same way:

    send, flush          poll, iteration      what happens there
    aio/producer.py      aio/consumer.py      the worker appends; the consumer asks for batches
    outbox.py            aio/fetched.py       records become batches; batches become records
    client/operations/appending.py, fetching.py     batches become frames to servers, with retries
    client/io/aio_transport.py                calls of an operation, a connection for each server
    client/io/aio_connection.py               the socket; the protocol is in conversation.py
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

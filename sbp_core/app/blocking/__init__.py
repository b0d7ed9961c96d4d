"""The blocking client for applications. Its modules are generated from `sbp_core.app.aio`."""

from sbp_core.app.blocking.assignment import Assignment
from sbp_core.app.blocking.connection import Connection, connect
from sbp_core.app.blocking.consumer import Consumer
from sbp_core.app.blocking.producer import Producer
from sbp_core.app.blocking.transaction import Transaction

__all__ = ["Assignment", "Connection", "Consumer", "Producer", "Transaction", "connect"]

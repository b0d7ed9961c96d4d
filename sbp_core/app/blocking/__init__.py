"""The blocking client for applications: facades of the one for asyncio, on the loop of a thread.

A call is one hop to that loop. Calls that need no server do not hop: `send` collects a record on
the caller's thread, and an iterator hands out the records of a batch there.
"""

from sbp_core.app.blocking.connection import Connection, connect
from sbp_core.app.blocking.consumer import Assignment, Consumer, RecordIterator
from sbp_core.app.blocking.producer import Committer, Producer, Transaction

__all__ = [
    "Assignment",
    "Committer",
    "Connection",
    "Consumer",
    "Producer",
    "RecordIterator",
    "Transaction",
    "connect",
]

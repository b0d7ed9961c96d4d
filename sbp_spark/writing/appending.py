"""How a task's record batches get to the servers: at once, or staged in a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sbp_core.client import Appender, AppendItem, Transaction, Writer
from sbp_core.errors import TxnEndedError, UnsupportedError
from sbp_core.failpoints import failpoint
from sbp_spark.task_log import LOG


class AppendingClient(Protocol):
    """What is needed of a client."""

    def appender(
        self,
        *,
        retry_unknown: bool = False,
        writer: Writer | None = None,
        transaction: Transaction | None = None,
    ) -> Appender:
        """Return what appends or stages batches as they are given, those of a stream in order."""
        ...


class TaskAppend(Protocol):
    """Where the batches of a task go. All methods but `close` raise SbpError."""

    def append(self, items: Sequence[AppendItem]) -> None:
        """Send batches, while the last ones may be on their way."""
        ...

    def finish(self) -> None:
        """Return when all of them are acknowledged."""
        ...

    def close(self) -> None:
        """Give up what is not."""
        ...


class StagedAppend:
    """Stages in a transaction, until it is dropped, if it `may_end`.

    A staging is dropped when its batch is decided, or the placement driver has given it up. Both
    are recorded there first: so a commit that names it is a replay or is refused, and publishes
    nothing.
    """

    def __init__(self, client: AppendingClient, transaction: Transaction, *, may_end: bool) -> None:
        self._appender = client.appender(transaction=transaction)
        self._may_end = may_end
        self._has_ended = False

    def append(self, items: Sequence[AppendItem]) -> None:
        """Stage the batches. Raises SbpError."""
        if self._has_ended:
            return
        failpoint("sink.before_stage")
        try:
            self._appender.append(items)
        except TxnEndedError as error:
            self._end(error)

    def finish(self) -> None:
        """Return when all of them are staged. Raises SbpError."""
        if self._has_ended:
            return
        try:
            self._appender.finish()
        except TxnEndedError as error:
            self._end(error)

    def close(self) -> None:
        """Give up what is not staged."""
        self._appender.close()

    def _end(self, error: TxnEndedError) -> None:
        if not self._may_end:
            raise error
        LOG.info("the commit will tell what became of the batch: %s", error)
        self._has_ended = True


class PlainAppend:
    """Appends as a writer of its own, so that what is sent again is there once.

    At a server that knows no writers it may be there twice.
    """

    def __init__(self, client: AppendingClient) -> None:
        self._client = client
        self._is_numbered = True
        self._appender = client.appender(writer=Writer())

    def append(self, items: Sequence[AppendItem]) -> None:
        """Append the batches. Raises SbpError."""
        try:
            self._appender.append(items)
        except UnsupportedError as error:
            self._go_on_without_numbers(error)

    def finish(self) -> None:
        """Return when all of them are appended. Raises SbpError."""
        try:
            self._appender.finish()
        except UnsupportedError as error:
            self._go_on_without_numbers(error)
            self._appender.finish()

    def close(self) -> None:
        """Give up what is not appended."""
        self._appender.close()

    def _go_on_without_numbers(self, error: UnsupportedError) -> None:
        if not self._is_numbered:
            raise error
        self._is_numbered = False
        left = self._appender.unacknowledged
        self._appender = self._client.appender(retry_unknown=True)
        self._appender.append(left)

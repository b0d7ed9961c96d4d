"""How a task's record batches get to the servers: at once, or staged in a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sbp_core.client import AppendItem, AppendOutcome, Transaction, Writer
from sbp_core.errors import TxnEndedError, UnsupportedError
from sbp_core.failpoints import failpoint
from sbp_spark.task_log import LOG


class AppendingClient(Protocol):
    """What is needed of a client."""

    def append(
        self,
        items: Sequence[AppendItem],
        *,
        retry_unknown: bool = False,
        writer: Writer | None = None,
        transaction: Transaction | None = None,
    ) -> list[AppendOutcome]:
        """Append or stage the batches, those of one stream in order."""
        ...


class StagedAppend:
    """Stages in a transaction, until it is dropped, if it `may_end`.

    A staging is dropped when its batch is decided, or the placement driver has given it up. Both
    are recorded there first: so a commit that names it is a replay or is refused, and publishes
    nothing.
    """

    def __init__(self, client: AppendingClient, transaction: Transaction, *, may_end: bool) -> None:
        self._client = client
        self._transaction = transaction
        self._may_end = may_end
        self._has_ended = False

    def __call__(self, items: Sequence[AppendItem]) -> object:
        """Stage the batches. Raises SbpError."""
        if self._has_ended:
            return None
        failpoint("sink.before_stage")
        try:
            return self._client.append(items, transaction=self._transaction)
        except TxnEndedError as error:
            if not self._may_end:
                raise
            LOG.info("the commit will tell what became of the batch: %s", error)
            self._has_ended = True
            return None


class PlainAppend:
    """Appends as a writer of its own, so that what is sent again is there once.

    At a server that knows no writers it may be there twice.
    """

    def __init__(self, client: AppendingClient) -> None:
        self._client = client
        self._maybe_writer: Writer | None = Writer()

    def __call__(self, items: Sequence[AppendItem]) -> list[AppendOutcome]:
        """Append the batches. Raises SbpError."""
        if self._maybe_writer is not None:
            try:
                return self._client.append(items, writer=self._maybe_writer)
            except UnsupportedError:
                self._maybe_writer = None
        return self._client.append(items, retry_unknown=True)

"""Record batches in, acknowledgements out: by an appender, or by commits of a named producer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from sbp_core.app.blocking import Committer
from sbp_core.cli.output import write_notice
from sbp_core.client import AppendItem, AppendOutcome, Client, Writer
from sbp_core.errors import UnsupportedError
from sbp_core.records import peek_batch

OnAcknowledged = Callable[[int, int | None], None]
"""Is called with a number of records, and the offset of the first one, if that is known."""


class Delivery(Protocol):
    """Where record batches of one stream go, in their order."""

    def send(self, batches: Sequence[bytes]) -> None:
        """Send batches; they may be acknowledged later. Raises SbpError."""

    def settle(self) -> None:
        """Return when all that was sent is acknowledged. Raises SbpError."""


class Appending:
    """Appends each batch once, several at a time; more than once only if servers cannot do that."""

    def __init__(self, client: Client, stream_id: int, on_acknowledged: OnAcknowledged) -> None:
        self._client = client
        self._stream_id = stream_id
        self._on_acknowledged = on_acknowledged
        self._given_count = 0
        self._record_counts: dict[int, int] = {}
        """By number: of the batches that were given to the appender, and are not acknowledged."""
        self._is_numbered = True
        self._appender = client.appender(writer=Writer(), on_appended=self._on_appended)

    def send(self, batches: Sequence[bytes]) -> None:
        """Send batches; most of those before are acknowledged then. Raises SbpError."""
        if batches:
            self._append([AppendItem(self._stream_id, each) for each in batches])

    def settle(self) -> None:
        """Return when all that was sent is acknowledged. Raises SbpError."""
        self._append([])

    def _append(self, items: Sequence[AppendItem]) -> None:
        """Give batches to the appender; none to wait for the acknowledgement of all."""
        for each in items:
            self._record_counts[self._given_count] = peek_batch(each.batch).record_count
            self._given_count += 1
        try:
            self._appender.append(items)
        except UnsupportedError:
            if not self._is_numbered:
                raise
            write_notice(
                "the server has no idempotent appends: records may be duplicated if a connection"
                " breaks"
            )
            self._is_numbered = False
            unsettled = self._appender.unacknowledged
            self._appender = self._client.appender(
                retry_unknown=True, on_appended=self._on_appended
            )
            self._given_count, self._record_counts = 0, {}
            self._append(unsettled)
            if not items:
                self._append([])

    def _on_appended(self, number: int, outcome: AppendOutcome) -> None:
        self._on_acknowledged(self._record_counts.pop(number), outcome.base_offset)


class Committing:
    """Commits batches under the id of a producer, which counts them; offsets are not known."""

    def __init__(self, committer: Committer, on_acknowledged: OnAcknowledged) -> None:
        self._committer = committer
        self._on_acknowledged = on_acknowledged

    def send(self, batches: Sequence[bytes]) -> None:
        """Commit batches, all or none. Raises SbpError."""
        if batches:
            count = sum(peek_batch(each).record_count for each in batches)
            self._committer.commit(batches, count)
            self._on_acknowledged(count, None)

    def settle(self) -> None:
        """Return: what was sent is committed."""

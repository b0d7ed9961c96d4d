"""How far decisions have come, for those who wait for them to be published."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from sbp_core.pd.txns.transactions import Part, TxnRecord


@dataclass(frozen=True, slots=True)
class Progress:
    """Whether nothing of a decision waits any more, and what of it is given up."""

    is_published: bool
    given_up: tuple[Part, ...]


class _Open:
    """A decision of which some streams do not show their part yet."""

    def __init__(self, txn: TxnRecord) -> None:
        self.hidden_in = {part.stream_id for part in txn.parts}
        self.given_up = txn.given_up
        self.is_over = asyncio.Event()


class OpenDecisions:
    """The decisions that are not visible, or given up, in all their streams."""

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}
        self._is_stopped = False

    def add(self, txn: TxnRecord) -> None:
        """Take a decision that is to be published."""
        self._open[txn.txn_number] = _Open(txn)

    def stop(self) -> None:
        """Let nobody wait any longer."""
        self._is_stopped = True
        for decision in self._open.values():
            decision.is_over.set()

    async def wait(self, txn: TxnRecord, timeout_ms: float) -> Progress:
        """Wait until a decision is visible, or given up, in all its streams, but not for longer."""
        decision = self._open.get(txn.txn_number)
        if decision is None:
            return Progress(not self._is_stopped, txn.given_up)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await decision.is_over.wait()
        except TimeoutError:
            pass
        return Progress(not decision.hidden_in, decision.given_up)

    def note_given_up(self, txn: TxnRecord) -> None:
        """Note what is given up of a decision by now."""
        if txn.txn_number in self._open:
            self._open[txn.txn_number].given_up = txn.given_up

    def note_done(self, txn_number: int, stream_id: int) -> None:
        """Note that nothing of a decision waits in a stream any more."""
        decision = self._open.get(txn_number)
        if decision is None:
            return
        decision.hidden_in.discard(stream_id)
        if not decision.hidden_in:
            decision.is_over.set()
            del self._open[txn_number]

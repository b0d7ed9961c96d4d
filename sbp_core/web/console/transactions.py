"""Transactions by state, with what to do about them; giving one up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from starlette.responses import Response

from sbp_core.client import AsyncClient, TxnInfo, TxnPart
from sbp_core.errors import NotFoundError
from sbp_core.operating.txn_advice import ADVICE, loss_lines
from sbp_core.web.console.health import PROBE_MS
from sbp_core.web.console.site import Done, Question, Visit, check_typed, get, post
from sbp_core.web.console.words import counted

_PATH: Final = "/transactions"
STATES: Final = ("stuck", "lost", "publishing", "staged", "aborted", "published")
"""In the order of the page: what needs somebody is first."""
_OVER: Final = frozenset({"aborted", "published"})
ROWS_MAX: Final = 200
_EFFECT: Final = (
    "The parts that are incomplete at their range servers are dropped; the others are published."
)


@dataclass(frozen=True, slots=True)
class TxnRow:
    """A transaction. `hidden` and `lost` are its records by stream, None if not known."""

    txn: TxnInfo
    hidden: Mapping[int, int | None]
    lost: Mapping[int, int | None]

    @property
    def since_ms(self) -> int:
        """When it was decided, or staged; 0 if that is not known."""
        txn = self.txn
        return (txn.staged_at_ms if txn.decided_at_ms is None else txn.decided_at_ms) or 0

    @property
    def txn_id(self) -> str | None:
        """The id of its first part."""
        parts = (*self.txn.parts, *self.txn.lost)
        return parts[0].txn_id if parts else None


async def show(visit: Visit) -> Response:
    """Show the transactions by state; finished transactions on demand."""
    down = await _find_down(visit.client)
    producer = visit.query.get("producer", "").strip() or None
    txns = await visit.client.describe_txns(producer, spared=down)
    return visit.page(
        *("transactions.html", "Transactions"),
        groups=group_by_state(txns, is_open_only="all" not in visit.query),
        labels=await _find_labels(visit.client, txns),
        down=sorted(down),
        advice=ADVICE,
    )


async def ask_give_up(visit: Visit) -> Response:
    """Show what giving up a stuck batch can lose."""
    producer, number = visit.named("producer"), visit.named("batch")
    down = await _find_down(visit.client)
    txn = find_stuck(await visit.client.describe_txns(producer, spared=down), number)
    labels = await _find_labels(visit.client, [txn])
    question = Question(
        title=f"Give up batch {number} of {producer}?",
        facts=[ADVICE["stuck"], _EFFECT, *loss_facts(txn, labels)],
        button="Give it up",
        back=_PATH,
        typed=producer,
        is_destructive=True,
    )
    return visit.ask(question)


async def give_up(visit: Visit, fields: Mapping[str, str]) -> Done:
    """Give up the lost parts of a batch."""
    producer, number = visit.named("producer"), visit.named("batch")
    check_typed(producer, fields.get("typed", ""))
    loss = await visit.client.give_up_txn(producer, number)
    return Done(_PATH, tuple(loss_lines(producer, number, loss)))


def group_by_state(
    txns: Sequence[TxnInfo], *, is_open_only: bool
) -> list[tuple[str, int, list[TxnRow]]]:
    """Return state, count and rows of the transactions; states that need somebody are first.

    ROWS_MAX of a state are shown: the oldest, or of a finished state the newest.
    """
    counts = Counter(txn.state for txn in txns)
    groups = []
    for state in (*STATES, *sorted(counts.keys() - set(STATES))):  # a later release has others
        if not counts[state] or (is_open_only and state in _OVER):
            continue
        rows = [
            TxnRow(txn, by_stream(txn.parts), by_stream(txn.lost))
            for txn in txns
            if txn.state == state
        ]
        rows.sort(key=lambda row: row.since_ms, reverse=state in _OVER)
        groups.append((state, counts[state], rows[:ROWS_MAX]))
    return groups


def find_stuck(txns: Sequence[TxnInfo], number: int) -> TxnInfo:
    """Return the batch of a producer that can be given up. Raises NotFoundError if it cannot."""
    for txn in txns:
        if txn.batch_number == number and txn.state == "stuck":
            return txn
    raise NotFoundError.of(f"batch {number} is not stuck: what can be published is not given up")


def loss_facts(txn: TxnInfo, labels: Mapping[int, str]) -> list[str]:
    """Return what giving a stuck batch up can lose, a sentence for each stream."""
    return [
        f"stream {labels.get(stream_id, stream_id)}: "
        + (
            "records lost permanently, their number is not known"
            if count is None
            else f"up to {counted(count, 'record')} lost permanently"
        )
        for stream_id, count in by_stream(txn.parts).items()
    ]


def by_stream(parts: Sequence[TxnPart]) -> dict[int, int | None]:
    """Return the records of the parts in each stream; None if the number is not known."""
    counts: dict[int, int | None] = {}
    for part in parts:
        if part.stream_id >= 0:
            so_far = counts.get(part.stream_id, 0)
            is_known = so_far is not None and part.record_count >= 0
            counts[part.stream_id] = (so_far or 0) + part.record_count if is_known else None
    return counts


async def _find_labels(client: AsyncClient, txns: Sequence[TxnInfo]) -> dict[int, str]:
    parts = (part for txn in txns for part in (*txn.parts, *txn.lost))
    ids = sorted({part.stream_id for part in parts if part.stream_id >= 0})
    return {each.stream_id: each.label for each in await client.find_streams(ids)}


async def _find_down(client: AsyncClient) -> set[str]:
    """Return the range servers that do not answer, whose staged batches are not known."""
    servers = await client.range_servers()
    endpoints = [each.endpoint for each in servers if not each.is_retired]
    return set(await client.probe(endpoints, timeout_ms=PROBE_MS))


ROUTES: Final = (
    get(_PATH, show),
    get(_PATH + "/{producer}/{batch:int}/give-up", ask_give_up),
    post(_PATH + "/{producer}/{batch:int}/give-up", give_up),
)

"""Advice on transactions: what to do about each state, and what a give-up has lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from sbp_core.wording import counted

if TYPE_CHECKING:
    from sbp_core.client.types import TxnLoss

ADVICE: Final[Mapping[str, str]] = {
    "stuck": (
        "Later batches of its streams wait for it. First repair the damage: check and repair the"
        " log of the server (sbp log check, sbp log repair), and start it again. If the batch is"
        " still stuck, give it up."
    ),
    "lost": (
        "Parts of it were given up: they will never be visible. The rest is published, and its"
        " streams continue. Nothing is to be done here; its producer has logged an error."
    ),
    "publishing": (
        "It is committed, and visible as soon as its range servers have confirmed: the placement"
        " driver repeats the request. If it stays, start the range servers that are down, and"
        " repair a stuck batch before it."
    ),
    "staged": (
        "It is durable, and not visible before its producer commits it. Without a commit it is"
        " dropped after staged_timeout_ms. Nothing is to be done."
    ),
    "published": "All its records are visible.",
    "aborted": "Its records are dropped, and were never visible.",
}
"""Advice by `TxnInfo.state`."""


def loss_lines(producer: str, batch_number: int, loss: TxnLoss) -> list[str]:
    """Return the losses of a batch that was given up, a line for each stream."""
    batch = f"batch {batch_number} of {producer}"
    counts: Counter[int] = Counter()
    for part in loss.parts:
        counts[part.stream_id] += part.record_count
    lines = [
        f"lost: {counted(count, 'record')} of {batch}; stream {stream_id} continues without"
        for stream_id, count in counts.items()
    ]
    if loss.record_count is None:
        lines.append(f"{batch} was decided too long ago: its outcome is no longer known")
    elif not counts:
        lines.append(f"nothing of {batch} is lost: it is published")
    if not loss.is_published:
        lines.append(f"the rest of {batch} is not published yet: {loss.waits_for}")
    return lines

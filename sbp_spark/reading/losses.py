"""Records that were to be read and are lost or damaged: the errors, and the lines in the log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from sbp_core.errors import SbpError
from sbp_core.wording import listed
from sbp_spark.reporting import LOG

DOUBT_WAITS_S: Final = (0.1, 0.2, 0.4, 0.8)
"""Pauses between looks at metadata that show a loss: they may lag."""


@dataclass(frozen=True, slots=True)
class Loss:
    """The offsets [start_offset, end_offset) of a stream; None: its end is not known."""

    stream_id: int
    start_offset: int
    end_offset: int | None

    def describe(self, names: Mapping[int, str]) -> str:
        """Return how messages name it."""
        where = f"stream {self.stream_id} ({names.get(self.stream_id) or 'unnamed'})"
        if self.end_offset is None:
            return f"{where}: all from {self.start_offset} on"
        return f"{where}: [{self.start_offset}, {self.end_offset})"


class DataLossError(SbpError):
    """Offsets that were to be read are no longer stored.

    `losses` lists all of them exactly; `names` has stream names by id, where known.
    """

    def __init__(self, losses: tuple[Loss, ...], names: Mapping[int, str]) -> None:
        super().__init__(losses, names)
        self.losses = losses
        self.names = names

    def __str__(self) -> str:
        return (
            f"{describe_losses(self.losses, self.names, is_short=True)}. They were"
            " trimmed before they were read, or their range was deleted. Lengthen the retention or"
            " read more often; to continue after the loss, set failOnDataLoss to false or report"
        )


class DamagedRecordsError(DataLossError):
    """Offsets that were to be read are stored, in a record batch that cannot be decoded."""

    def __init__(self, loss: Loss, names: Mapping[int, str], cause: str) -> None:
        super().__init__((loss,), names)
        self.args = (loss, names, cause)
        self.cause = cause

    def __str__(self) -> str:
        return (
            f"{self.describe()}. To continue after them, set failOnDataLoss to false or report;"
            " all other records of the stream are read"
        )

    def describe(self) -> str:
        """Return the damage, and its cause."""
        (loss,) = self.losses
        return (
            "records cannot be read, their record batch is damaged:"
            f" {loss.describe(self.names)}: {self.cause}"
        )


def describe_losses(
    losses: Iterable[Loss], names: Mapping[int, str], *, is_short: bool = False
) -> str:
    """Return how many offsets are lost, and which; only the first of many if `is_short`."""
    every = list(losses)
    ends = [each.end_offset for each in every]
    count = sum(end - each.start_offset for each, end in zip(every, ends, strict=True) if end)
    number = str(count) if None not in ends else f"at least {count}" if count else "some"
    described = [each.describe(names) for each in every]
    which = listed(described, "; ") if is_short else "; ".join(described)
    return f"{number} offsets are lost, no range holds them: {which}"


def log_losses(losses: Iterable[Loss], names: Mapping[int, str]) -> None:
    """Log every interval, if there is any."""
    every = list(losses)
    if every:
        LOG.warning("data loss: %s; reading continues after them", describe_losses(every, names))

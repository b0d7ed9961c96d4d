"""Taking a query back to an earlier micro-batch: what Spark has noted since is put aside.

Files are put aside from the last micro-batch to the first, of each the commit before the offsets.
So whatever interrupts that, Spark finds a checkpoint that it could have written itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

from sbp_core.errors import ConfigurationError
from sbp_spark.checkpoint.files import Checkpoint, SbpSource, open_checkpoint
from sbp_spark.reading.offsets import Interval

_ASIDE: Final = "rewound"


@dataclass(frozen=True, slots=True)
class Rewind:
    """A way back: reading goes on behind micro-batch `target`, those of `undone` are run anew."""

    checkpoint: Checkpoint
    target: int
    undone: tuple[int, ...]


def plan_rewind(checkpoint: Checkpoint, target: int) -> Rewind:
    """Return the way back to the end of micro-batch `target`. Raises ConfigurationError."""
    checkpoint.check_committed(target)
    if checkpoint.has_state:
        raise ConfigurationError(
            f"{checkpoint.folder} holds state, as of an aggregation or a join: it has seen the"
            " later batches and cannot go back; start the query with a new checkpoint, from what"
            " `sbp checkpoint to-starting-offsets` prints"
        )
    undone = tuple(each for each in checkpoint.logged if each > target)
    if not undone:
        raise ConfigurationError(f"batch {target} is the last one: there is nothing to undo")
    return Rewind(checkpoint, target, undone)


def ways_back(source: SbpSource, plan: Rewind) -> list[Interval]:
    """Return what of each stream is read again, by id.

    Raises ConfigurationError if the target leaves open where a stream starts, and CheckpointError.
    """
    target = source.decided_offset(plan.target)
    begins = {each: at.next_offset for each, at in {**target.left_out, **target.streams}.items()}
    for batch in plan.undone:
        last = source.offset(batch).streams
        for stream_id, at in last.items():
            begins.setdefault(stream_id, at.base_offset or 0)
    return [Interval(each, begins[each], at.next_offset) for each, at in sorted(last.items())]


def carry_out(plan: Rewind) -> Path:
    """Put aside what is later than the target; return the folder in which it is kept.

    Raises ConfigurationError, and changes nothing, if the query has gone on since the plan.
    """
    folder = plan.checkpoint.folder
    if open_checkpoint(str(folder)) != plan.checkpoint:
        raise ConfigurationError(f"{folder} is changing: a query runs on it; stop it first")
    numbers = count(1)
    aside = next(each for n in numbers if not (each := folder / f"{_ASIDE}-{n}").exists())
    for batch in reversed(plan.undone):
        for kind in ("commits", "offsets"):
            for path in _files(folder / kind, batch):
                kept = aside / kind / path.name
                kept.parent.mkdir(parents=True, exist_ok=True)
                path.rename(kept)
                _sync(kept.parent)
                _sync(path.parent)
    return aside


def _files(folder: Path, batch: int) -> Iterator[Path]:
    """Yield the checksum before the file that it is of: alone it would be wrong."""
    for name in (f".{batch}.crc", str(batch)):
        if (folder / name).exists():
            yield folder / name


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

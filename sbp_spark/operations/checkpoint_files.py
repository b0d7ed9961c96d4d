"""Spark's checkpoint folder of a streaming query: the contents of its files, and the rewind.

`offsets/N` is written before micro-batch N runs: a version, metadata, then a line per source with
the offset at which the batch ends. In v1 a source is identified by the index of its line, from 0,
and a source without an offset has a line `-`. In v2, which Spark writes for queries with named
sources, a line is `NAME:{json}`, in no fixed order, and a source may be missing from some batches:
it was added later, or removed. Spark continues a source that the last batch lacks from the batch
before it, and begins it as a new one if that lacks it, too. An unnamed source has its index as its
name, in both.

`commits/N` is written when the batch is done. A batch without a commit, only ever the last one,
is repeated. Both folders keep about a hundred batches. `state` exists if the query keeps state.
Each file may have a checksum, `.N.crc`.

A rewind moves files aside from the last micro-batch to the first, of each batch the commit before
the offsets. If that is interrupted, Spark finds a checkpoint that it could have written itself.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final

from sbp_core import limits
from sbp_core.errors import ConfigurationError
from sbp_core.regular_files import read_regular
from sbp_core.wording import listed
from sbp_spark.reading.offsets import INITIAL, CheckpointError, Interval, SourceOffset

_VERSIONS: Final = ("v1", "v2")
_SCHEME: Final = re.compile("[A-Za-z][A-Za-z0-9+.-]+")
"""A scheme of URLs such as s3a or dbfs, which Spark accepts for a checkpointLocation."""
_HEADER_LINES: Final = 2
_NO_OFFSET: Final = "-"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint as it was when it was opened: the micro-batches that it knows, ascending."""

    folder: Path
    query_id: str
    logged: tuple[int, ...]
    committed: tuple[int, ...]

    @property
    def last_committed(self) -> int | None:
        """The last micro-batch that was finished, None if there was none."""
        return self.committed[-1] if self.committed else None

    @property
    def unfinished(self) -> int | None:
        """The micro-batch that was begun, not committed, and is repeated when the query starts."""
        return self.logged[-1] if self.logged[-1] not in self.committed else None

    @property
    def has_state(self) -> bool:
        """Whether the query keeps state across micro-batches, as aggregations and joins do."""
        return (self.folder / "state").is_dir()

    @property
    def usable(self) -> list[int]:
        """The committed micro-batches whose offsets are kept."""
        return [each for each in self.committed if each in self.logged]

    def check_committed(self, batch: int) -> None:
        """Raise ConfigurationError unless a micro-batch is committed and its offsets are kept."""
        usable = self.usable
        if batch not in usable:
            kept = f"{usable[0]} to {usable[-1]}" if usable else "none"
            raise ConfigurationError(
                f"batch {batch} is not among the committed batches of {self.folder} whose offsets"
                f" are kept: {kept}"
            )

    def source_offsets(self, batch: int) -> dict[str, Any]:
        """Return the end of a micro-batch by source name, parsed JSON, None for no offset yet.

        Raises CheckpointError.
        """
        path = self.folder / "offsets" / str(batch)
        try:
            data = read_regular(path, limits.CHECKPOINT_FILE_BYTES_MAX)
            lines = data.decode("utf-8").splitlines()
            if len(lines) < _HEADER_LINES or lines[0] not in _VERSIONS:
                raise CheckpointError(
                    f"{path} begins with {lines[0][:20] if lines else 'nothing'!r}; expected"
                    f" {' or '.join(_VERSIONS)}, as Spark 4.3 writes it"
                )
            found = lines[_HEADER_LINES:]
            named = _split_names(found) if lines[0] == "v2" else enumerate(found)
            return {
                str(name): None if text == _NO_OFFSET else json.loads(text) for name, text in named
            }
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:  # JSON, UTF-8, a line without a name
            raise CheckpointError(f"{path} is damaged: {error}") from error


@dataclass(frozen=True, slots=True)
class SbpSource:
    """A source of a query that reads streams; `count` is how many sources the query has.

    `newest` is the last micro-batch that has it, an earlier one than the last of the query if the
    source was removed.
    """

    checkpoint: Checkpoint
    name: str
    count: int
    newest: int

    @property
    def is_removed(self) -> bool:
        """Whether the query no longer has the source."""
        return self.newest != self.checkpoint.logged[-1]

    @property
    def last_committed(self) -> int | None:
        """The last committed micro-batch that may have it, None if there is none."""
        last = self.checkpoint.last_committed
        return None if last is None else min(last, self.newest)

    def offset(self, batch: int) -> SourceOffset:
        """Return where a micro-batch ends; INITIAL if the source had no offset in it.

        Raises CheckpointError.
        """
        found = self.checkpoint.source_offsets(batch)
        has_places_only = all(map(str.isdecimal, (self.name, *found)))
        if has_places_only and len(found) != self.count:
            raise CheckpointError(
                f"batch {batch} of {self.checkpoint.folder} has {len(found)} sources, but the last"
                f" batch has {self.count}: the query was changed; choose a later batch"
            )
        value = found.get(self.name)
        return INITIAL if value is None else SourceOffset.from_json(value)

    def decided_offset(self, batch: int) -> SourceOffset:
        """Return where the source continues after a micro-batch.

        Raises ConfigurationError if it was open then where some stream starts: that would be
        decided again, and the records between would be skipped. Raises CheckpointError.
        """
        offset = self.offset(batch)
        before = batch - 1
        if self.name not in self.checkpoint.source_offsets(batch) and (
            before in self.checkpoint.logged
        ):
            offset = self.offset(before)
        if offset.pending:
            raise ConfigurationError(
                f"at the end of batch {batch} it was not yet known where streams"
                f" {listed(sorted(offset.pending))} start: a range server was down;"
                " let the query run until it is back, and choose a later batch"
            )
        return offset


def open_checkpoint(path: str) -> Checkpoint:
    """Return the checkpoint in a folder. Raises ConfigurationError if it is none."""
    scheme, colon, rest = path.partition(":")
    if scheme == "file" and rest.startswith("/") and (rest[:2] != "//" or rest[:3] == "///"):
        path = f"/{rest.lstrip('/')}"
    elif colon and _SCHEME.fullmatch(scheme):
        raise ConfigurationError(
            f"{path} is not on this machine: copy it to a local folder, for example with `hadoop fs"
            " -copyToLocal`, and after a rewind copy it back"
        )
    folder = Path(path)
    try:
        metadata = read_regular(folder / "metadata", limits.SMALL_FILE_BYTES_MAX)
        query_id = str(json.loads(metadata)["id"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigurationError(
            f"{folder} is not the checkpoint of a streaming query: it has no file `metadata` with"
            " the query's id; name the folder that is the query's checkpointLocation"
        ) from error
    logged = _batches(folder / "offsets")
    if not logged:
        raise ConfigurationError(f"{folder} has no micro-batch yet: the query has read nothing")
    return Checkpoint(folder, query_id, logged, _batches(folder / "commits"))


def find_source(checkpoint: Checkpoint, wanted: str | None = None) -> SbpSource:
    """Return the source that reads streams, or the one named `wanted` if there are several.

    A named source that was removed is found as long as a micro-batch that has it is kept.
    Raises ConfigurationError when that is not one source, CheckpointError for damage.
    """
    sources = find_sources(checkpoint)
    chosen = [each for each in sources if wanted in {None, each.name}]
    if wanted is not None and not chosen:
        chosen = _find_removed(checkpoint, wanted)
    if len(chosen) != 1:
        found = ", ".join(each.name for each in sources)
        raise ConfigurationError(
            f"{checkpoint.folder} has {sources[0].count} sources, of which these read streams:"
            f" {found}; choose one of them with --source"
        )
    return chosen[0]


def find_sources(checkpoint: Checkpoint) -> list[SbpSource]:
    """Return the sources of the last micro-batch that read streams, by place, then by name.

    Raises ConfigurationError when there is none, CheckpointError for damage.
    """
    newest = checkpoint.logged[-1]
    last = checkpoint.source_offsets(newest)
    ours = sorted((name for name, value in last.items() if _is_ours(value)), key=_place)
    if not ours:
        raise ConfigurationError(
            f"{checkpoint.folder} has {len(last)} sources, and none of them is an sbp source"
        )
    return [SbpSource(checkpoint, name, len(last), newest) for name in ours]


def _find_removed(checkpoint: Checkpoint, name: str) -> list[SbpSource]:
    """Return the source with a name that earlier micro-batches have; none for an index."""
    for batch in () if name.isdecimal() else reversed(checkpoint.logged):
        found = checkpoint.source_offsets(batch)
        if _is_ours(found.get(name)):
            return [SbpSource(checkpoint, name, len(found), batch)]
    return []


def _place(name: str) -> tuple[int, str]:
    return (int(name), "") if name.isdecimal() else (sys.maxsize, name)


def _split_names(lines: list[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        name, colon, text = line.partition(":")
        if not colon or not name or name.startswith("{"):
            raise ValueError(f"expected NAME:OFFSET, got {line[:40]!r}")
        yield name, text


def _is_ours(value: object) -> bool:
    names = value.keys() if isinstance(value, dict) else frozenset[str]()
    return "version" in names and ("streams" in names or "initial" in names)


def _batches(folder: Path) -> tuple[int, ...]:
    if not folder.is_dir():
        return ()
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read: {error.strerror}") from error
    return tuple(sorted(int(name) for name in names if name.isascii() and name.isdigit()))


_ASIDE: Final = "rewound"


@dataclass(frozen=True, slots=True)
class Rewind:
    """A rewind: reading continues after micro-batch `target`, and `undone` are repeated."""

    checkpoint: Checkpoint
    target: int
    undone: tuple[int, ...]


def plan_rewind(checkpoint: Checkpoint, target: int) -> Rewind:
    """Return the way back to the end of micro-batch `target`. Raises ConfigurationError."""
    checkpoint.check_committed(target)
    if checkpoint.has_state:
        raise ConfigurationError(
            f"{checkpoint.folder} has state, as of an aggregation or a join, which includes the"
            " later batches and cannot be rewound; start the query with a new checkpoint, from what"
            " `sbp checkpoint to-starting-offsets` prints"
        )
    undone = tuple(each for each in checkpoint.logged if each > target)
    if not undone:
        raise ConfigurationError(
            f"batch {target} is the last one, so there is nothing to undo; choose an earlier batch"
        )
    return Rewind(checkpoint, target, undone)


def ways_back(source: SbpSource, plan: Rewind) -> list[Interval]:
    """Return the offsets of each stream that are read again, by id.

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
    """Move the files after the target aside; return the folder that keeps them.

    Raises ConfigurationError, and changes nothing, if the query has gone on since the plan.
    """
    folder = plan.checkpoint.folder
    if open_checkpoint(str(folder)) != plan.checkpoint:
        raise ConfigurationError(f"{folder} has changed since: a query runs on it; stop that first")
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

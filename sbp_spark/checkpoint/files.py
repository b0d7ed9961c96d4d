"""Spark's checkpoint folder of a streaming query: which file says what.

`offsets/N` is written before micro-batch N is run: a version, metadata, then a line for each
source, in the order of the query, with the offset at which the batch ends. `commits/N` is written
when it is done. So a batch without a commit, only ever the last one, is run again. Both folders
keep about a hundred batches. `state` is there if the query keeps state. Each file may have a
checksum, `.N.crc`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sbp_core.errors import ConfigurationError
from sbp_spark.reading.offsets import INITIAL, SourceOffset
from sbp_spark.reading.stream_position import CheckpointError

_VERSION: Final = "v1"
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
    def maybe_last_committed(self) -> int | None:
        """The last micro-batch that was finished, None if there was none."""
        return self.committed[-1] if self.committed else None

    @property
    def maybe_unfinished(self) -> int | None:
        """The micro-batch that was begun and is run again when the query starts."""
        return self.logged[-1] if self.logged[-1] not in self.committed else None

    @property
    def has_state(self) -> bool:
        """Whether the query aggregates, joins, or does else what lasts beyond a micro-batch."""
        return (self.folder / "state").is_dir()

    def check_committed(self, batch: int) -> None:
        """Raise ConfigurationError unless a micro-batch is committed and its offsets are kept."""
        usable = [each for each in self.committed if each in self.logged]
        if batch not in usable:
            kept = f"{usable[0]} to {usable[-1]}" if usable else "none"
            raise ConfigurationError(
                f"batch {batch} is not among the committed batches of {self.folder} whose offsets"
                f" are kept: {kept}"
            )

    def source_offsets(self, batch: int) -> list[Any]:
        """Return the end of a micro-batch in each source, parsed JSON, None where there is none.

        Raises CheckpointError.
        """
        path = self.folder / "offsets" / str(batch)
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
            if len(lines) < _HEADER_LINES or lines[0] != _VERSION:
                raise CheckpointError(
                    f"{path} begins with {lines[0][:20] if lines else 'nothing'!r}; expected"
                    f" {_VERSION}, as Spark 4.3 writes it"
                )
            found = lines[_HEADER_LINES:]
            return [None if line == _NO_OFFSET else json.loads(line) for line in found]
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
        except ValueError as error:  # of JSON, and of UTF-8
            raise CheckpointError(f"{path} is damaged: {error}") from error


@dataclass(frozen=True, slots=True)
class SbpSource:
    """The source at a place, from 0, among `count` of a query; it reads streams."""

    checkpoint: Checkpoint
    index: int
    count: int

    def offset(self, batch: int) -> SourceOffset:
        """Return where a micro-batch ends. Raises CheckpointError."""
        found = self.checkpoint.source_offsets(batch)
        if len(found) != self.count:
            raise CheckpointError(
                f"batch {batch} of {self.checkpoint.folder} has {len(found)} sources, but the last"
                f" one has {self.count}; was the query changed?"
            )
        return INITIAL if found[self.index] is None else SourceOffset.from_json(found[self.index])

    def decided_offset(self, batch: int) -> SourceOffset:
        """Return where a micro-batch ends, to read on from there.

        Raises ConfigurationError if it was open then where some stream starts: that would be
        decided anew, and what lies between would be passed over. Raises CheckpointError.
        """
        offset = self.offset(batch)
        if offset.pending:
            raise ConfigurationError(
                f"at the end of batch {batch} it was not decided yet where streams"
                f" {', '.join(map(str, sorted(offset.pending)))} start: a range server was away;"
                " let the query run until it is back, and take a batch that came after that"
            )
        return offset


def open_checkpoint(path: str) -> Checkpoint:
    """Return the checkpoint in a folder. Raises ConfigurationError if it is none."""
    if "://" in path:
        raise ConfigurationError(
            f"{path} is a URL; only local folders can be read: copy the checkpoint to one"
        )
    folder = Path(path)
    try:
        query_id = str(json.loads((folder / "metadata").read_text(encoding="utf-8"))["id"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{folder} is no checkpoint of a streaming query: it has no file `metadata` with the"
            " query's id; name the folder that was the query's checkpointLocation"
        ) from error
    logged = _batches(folder / "offsets")
    if not logged:
        raise ConfigurationError(f"{folder} holds no micro-batch yet: the query has not read")
    return Checkpoint(folder, query_id, logged, _batches(folder / "commits"))


def find_source(checkpoint: Checkpoint, wanted: int | None = None) -> SbpSource:
    """Return the source that reads streams, or the one at index `wanted` if there are several.

    Raises ConfigurationError when that is not one source, CheckpointError for damage.
    """
    sources = find_sources(checkpoint)
    chosen = [each for each in sources if wanted in {None, each.index}]
    if len(chosen) != 1:
        found = ", ".join(str(each.index) for each in sources)
        raise ConfigurationError(
            f"{checkpoint.folder} has {sources[0].count} sources, of which these read streams:"
            f" {found}; choose one of them with --source"
        )
    return chosen[0]


def find_sources(checkpoint: Checkpoint) -> list[SbpSource]:
    """Return the sources that read streams.

    Raises ConfigurationError when there is none, CheckpointError for damage.
    """
    last = checkpoint.source_offsets(checkpoint.logged[-1])
    ours = [index for index, value in enumerate(last) if _is_ours(value)]
    if not ours:
        raise ConfigurationError(
            f"{checkpoint.folder} has {len(last)} sources, of which these read streams: none"
        )
    return [SbpSource(checkpoint, index, len(last)) for index in ours]


def _is_ours(value: object) -> bool:
    names = value.keys() if isinstance(value, dict) else frozenset[str]()
    return "version" in names and ("streams" in names or "initial" in names)


def _batches(folder: Path) -> tuple[int, ...]:
    if not folder.is_dir():
        return ()
    names = (path.name for path in folder.iterdir())
    return tuple(sorted(int(name) for name in names if name.isascii() and name.isdigit()))

"""The stream of each row: from the options, or from a column of the row."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sbp_core.errors import ConfigurationError
from sbp_spark.options.declaring import INT64_MAX
from sbp_spark.options.sink_targets import Routing, Targets
from sbp_spark.writing.bad_records import BadRows, StreamIds
from sbp_spark.writing.directory import StreamDirectory

NO_STREAM: Final = -1
_COLUMNS: Final = ("stream", "stream_id")
_NEGATIVE: Final = re.compile(r"-[0-9]+")


@dataclass(frozen=True, slots=True)
class Routed:
    """The streams of rows, NO_STREAM where there is none: then `bad` says why."""

    stream_ids: StreamIds
    bad: tuple[BadRows, ...] = ()


class RowRouter:
    """Finds the streams of rows, task by task; `partition_id` is where round robin begins.

    Without a `key_column` no row has a key.
    """

    def __init__(
        self,
        targets: Targets,
        directory: StreamDirectory,
        *,
        key_column: str | None = "key",
        partition_id: int = 0,
    ) -> None:
        self._targets = targets
        self._key_column = key_column
        self._directory = directory
        self._turn = partition_id
        self._option_ids: npt.NDArray[np.int64] | None = None

    def maybe_set_id(self) -> int | None:
        """Return a number, not 0, for the set of streams that the rows are spread over.

        Which of them a row goes to may depend on the rows before it, and so on the task. None
        where it does not. Raises SbpError where there is no such stream.
        """
        if len(self._targets.refs) < 2:
            return None
        id_bytes = np.sort(self.option_ids()).astype("<i8").tobytes()
        return int.from_bytes(blake2b(id_bytes, digest_size=7).digest(), "little") + 1

    def route(self, batch: pa.RecordBatch, rows: pa.RecordBatch) -> Routed:
        """Return the streams of `rows`, the converted rows of Spark's `batch`.

        Raises SbpError where an option names a stream that does not exist.
        """
        if not self._targets.refs:
            return self._by_column(batch)
        stream_ids = self.option_ids()
        if len(stream_ids) == 1:
            return Routed(int(stream_ids[0]))
        if self._targets.routing is Routing.ROUND_ROBIN or self._key_column is None:
            return Routed(stream_ids[self._take_turns(rows.num_rows)])
        return Routed(stream_ids[self._by_key(rows.column(self._key_column))])

    def option_ids(self) -> npt.NDArray[np.int64]:
        """Return the streams that options name, in their order.

        Raises SbpError where there is no such stream.
        """
        if self._option_ids is None:
            found = self._directory.ids_of([ref.text for ref in self._targets.refs])
            self._option_ids = np.array(found, dtype=np.int64)
        return self._option_ids

    def option_streams(self) -> dict[int, str]:
        """Return what options call the streams that they name, by id. Raises SbpError."""
        names = [ref.text for ref in self._targets.refs]
        return dict(zip(self.option_ids().tolist(), names, strict=True))

    def _take_turns(self, count: int) -> npt.NDArray[np.int64]:
        """Return the places of the next `count` streams in turn."""
        places = np.arange(self._turn, self._turn + count) % len(self._targets.refs)
        self._turn = (self._turn + count) % len(self._targets.refs)
        return places

    def _by_key(self, key: pa.Array) -> npt.NDArray[np.int64]:
        places = place_of_keys(key, len(self._targets.refs))
        if key.null_count:
            is_null = np.asarray(key.is_null())
            places[is_null] = self._take_turns(key.null_count)
        return places

    def _by_column(self, batch: pa.RecordBatch) -> Routed:
        column = _stream_column(batch)
        where = f"column {' or '.join(_present(batch))}"
        is_one = not column.null_count and _are_alike(column)
        encoded = (column.slice(0, 1) if is_one else column).dictionary_encode()
        names = encoded.dictionary.cast(pa.string()).cast(pa.binary()).to_pylist()
        # Bytes that are not UTF-8 become backslashes, which no name has.
        texts = [each.decode(errors="backslashreplace") for each in names]
        no_ids = set(filter(_NEGATIVE.fullmatch, texts)) if _has_numbers(batch) else set()
        self._directory.look_up([text for text in texts if text not in no_ids], where)
        found = [None if text in no_ids else self._directory.maybe_id(text) for text in texts]
        ids = np.array([NO_STREAM if each is None else each for each in found], dtype=np.int64)
        if is_one and found[0] is not None:
            return Routed(int(ids[0]))
        places = np.resize(np.asarray(encoded.indices.fill_null(len(ids))), len(column))
        stream_ids = np.append(ids, NO_STREAM)[places]
        bad = []
        if column.null_count:
            error = ConfigurationError(
                f"{where} is null; expected the name or id of a"
                " stream: fill it, filter these rows out, or use the option stream"
            )
            bad.append(BadRows(np.flatnonzero(places == len(ids)), error))
        for place in np.flatnonzero(ids == NO_STREAM):
            rows = np.flatnonzero(places == place)
            text = texts[place]
            fault = _no_id(text, where) if text in no_ids else self._directory.fault(text)
            bad.append(BadRows(rows, fault, text))
        return Routed(stream_ids, tuple(bad))


def place_of_keys(key: pa.Array, count: int) -> npt.NDArray[np.int64]:
    """Return for each key its place among `count` streams: crc32 mod count; for null any.

    Keys that are not bytes count as their text.
    """
    data = key if pa.types.is_binary(key.type) else key.cast(pa.string()).cast(pa.binary())
    values = data.fill_null(b"") if data.null_count else data
    hashes = np.fromiter(map(crc32, values.to_pylist()), dtype=np.int64, count=len(values))
    return hashes % count


def split_rows(rows: pa.RecordBatch, stream_ids: StreamIds) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield (stream id, its rows in their order)."""
    if rows.num_rows == 0:
        return
    if isinstance(stream_ids, int):
        yield stream_ids, rows
        return
    if (stream_ids == stream_ids[0]).all():
        yield int(stream_ids[0]), rows
        return
    order = np.argsort(stream_ids, kind="stable")
    ordered_ids = stream_ids[order]
    ordered_rows = rows.take(pa.array(order))
    starts = np.flatnonzero(np.diff(ordered_ids, prepend=ordered_ids[0] - 1))
    for start, stop in zip(starts, [*starts[1:], rows.num_rows], strict=True):
        yield int(ordered_ids[start]), ordered_rows.slice(start, stop - start)


def _present(batch: pa.RecordBatch) -> list[str]:
    return [name for name in _COLUMNS if name in batch.schema.names]


def _has_numbers(batch: pa.RecordBatch) -> bool:
    """Whether streams are named by numbers, which are ids; a text like -1 is a possible name."""
    return any(pa.types.is_integer(batch.column(name).type) for name in _present(batch))


def _no_id(text: str, where: str) -> ConfigurationError:
    return ConfigurationError(
        f"{where} is {text}, which is no stream id (0 to {INT64_MAX}); correct it, or filter these"
        " rows out"
    )


def _are_alike(column: pa.Array) -> bool:
    """Whether all values are the same: for most batches they are, and a dictionary takes longer."""
    return bool(column.slice(1).equals(column.slice(0, len(column) - 1)))


def _stream_column(batch: pa.RecordBatch) -> pa.Array:
    """Return the column that names the streams; the id of a row that has no name."""
    columns = [batch.column(name) for name in _present(batch)]
    if len(columns) == 2 and columns[0].null_count:
        return pc.coalesce(*(column.cast(pa.string()) for column in columns))
    return columns[0]

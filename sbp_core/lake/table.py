"""One Iceberg table of a stream: how far the stream has landed in it, and the next commit.

The summary of each snapshot that is made here says from which stream its records are, and where
they end, so data and progress are one commit, and nothing else is trusted after a crash:

    sbp.stream-id, sbp.stream-created-ms   the stream; ids are not used again, except by mistake
    sbp.start-offset, sbp.end-offset       the records of the snapshot
    sbp.commit, sbp.life                   the metadata of the cluster, as it was known then

A commit names the snapshot that it follows. If another process has committed since, the catalog
refuses the commit. PyIceberg would repeat it on top of the other commit, and so land the records
twice: the table property `commit.retry.num-retries` forbids that. For the same reason `append`
compares what its own snapshot says with the offset that the records were read for.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Any, Final, NamedTuple, Self

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationError,
)
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import ancestors_of
from pyiceberg.transforms import DayTransform, IdentityTransform

from sbp_core.client.types import StoreCommit, StreamInfo
from sbp_core.errors import ConfigurationError, SbpError, SchemaError
from sbp_core.lake.columns import OFFSET, TIMESTAMP
from sbp_core.lake.files import DataFiles, delete_unreferenced, read_file

_START: Final = "sbp.start-offset"
_END: Final = "sbp.end-offset"
_GAPS: Final = "sbp.gaps"
DICTIONARY_BYTES: Final = 1 << 16
"""Size up to which values are hashed for a dictionary, even if none repeats. Beside a row group of
4 MiB it is as large as Parquet's default beside one of 128 MiB."""
_NO_RETRIES: Final = {"commit.retry.num-retries": "0"}
_PROPERTIES: Final = {
    **_NO_RETRIES,
    "commit.manifest-merge.enabled": "true",
    "write.parquet.compression-codec": "zstd",
    "write.parquet.dict-size-bytes": str(DICTIONARY_BYTES),
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
_COMPACTED_FILES: Final = 16
"""Small files at the end of a table that are rewritten as one."""
_ORPHAN_AGE: Final = timedelta(days=3)
"""Age from which on a file that no snapshot refers to is left over from a killed process."""


class LakeConflictError(SbpError):
    """Another process has committed to the table: load it again, and see how far it has landed."""


@dataclass(frozen=True, slots=True)
class Landed:
    """How far a stream has landed: all records below `end_offset`, except those of the gaps."""

    end_offset: int
    commit: StoreCommit | None
    gaps: tuple[tuple[int, int], ...] = ()


class DataFileRange(NamedTuple):
    """A file with records of the offsets [start, end), perhaps not of all of them.

    `newest_us` is the latest time of its records, in us.
    """

    path: str
    start: int
    end: int
    newest_us: int
    bytes: int


@dataclass(frozen=True, slots=True)
class TableState:
    """How far a stream has landed in its table; `error` is why it does not go on."""

    stream: str
    table: str
    landed_offset: int | None = None
    files: int = 0
    bytes: int = 0
    gaps: tuple[tuple[int, int], ...] = ()
    metadata_location: str | None = None
    committed_at_ms: int | None = None
    error: str | None = None


class PendingAppend:
    """Records of a stream on the way into its table: a commit makes all of them part of it.

    The files are written as records come, so that a moment's records are in memory at a time.
    """

    def __init__(
        self, table: Table, stream: StreamInfo, changes: Transaction, columns: pa.Schema, start: int
    ) -> None:
        self._table = table
        self._stream = stream
        self._changes = changes
        self._files = DataFiles(table.io, changes.table_metadata)
        self._start_offset = start
        self.columns: Final = columns
        self.end_offset = start
        self.bytes = 0
        """Size of the records in Arrow."""

    def add(self, batches: Sequence[pa.RecordBatch]) -> bool:
        """Write the records from `end_offset` on, up to a batch whose schema is not `columns`.

        Return whether all were written.
        """
        written = list(takewhile(lambda each: each.schema.equals(self.columns), batches))
        rows = pa.Table.from_batches(written, self.columns)
        self._files.add(rows)
        self.bytes += rows.nbytes
        self.end_offset += rows.num_rows
        return len(written) == len(batches)

    def commit(self, commit: StoreCommit | None) -> None:
        """Commit the records. `commit` is the metadata of the cluster as it is known now.

        Raises LakeConflictError if another process has committed since they were begun, and what
        the catalog and the object store raise: load the table again then, and see what it says.
        """
        summary = _summary(self._stream, self._start_offset, self.end_offset, commit)
        _commit(self._table, self._changes, self._files.finish(), summary)

    def discard(self) -> None:
        """Delete what was written, before a commit was tried."""
        self._files.discard()


class LakeTable:
    """The table of one stream. Its methods block."""

    def __init__(self, table: Table, stream: StreamInfo) -> None:
        self._table = table
        self._stream = stream

    @classmethod
    def open(cls, catalog: Catalog, name: str, stream: StreamInfo, schema: pa.Schema) -> Self:
        """Return the table of a stream, which is made if it is not there.

        Raises ConfigurationError for a table with records of something else.
        """
        try:
            table = catalog.load_table(name)
        except NoSuchTableError:
            with suppress(TableAlreadyExistsError, CommitFailedException):  # another process did
                _create(catalog, name, schema)
            table = catalog.load_table(name)
        opened = cls(table, stream)
        opened.landed()
        return opened

    def state(self) -> TableState:
        """Return how far the stream has landed. Raises what `landed` raises."""
        landed = self.landed()
        snapshot = self._table.current_snapshot()
        summary = {} if snapshot is None or snapshot.summary is None else snapshot.summary
        return TableState(
            self._stream.label,
            self.name,
            None if landed is None else landed.end_offset,
            int(summary.get("total-data-files", 0)),
            int(summary.get("total-files-size", 0)),
            () if landed is None else landed.gaps,
            self._table.metadata_location,
            None if snapshot is None else snapshot.timestamp_ms,
        )

    def landed(self) -> Landed | None:
        """Return how far the stream has landed; None if nothing has.

        Raises ConfigurationError if the records of the table are of something else.
        """
        if self._table.current_snapshot() is None:
            return None
        for summary in self._summaries():
            self._check_stream(summary["sbp.stream-id"], summary["sbp.stream-created-ms"])
            number, life = summary.get("sbp.commit"), summary.get("sbp.life")
            commit = StoreCommit(int(number), life) if number and life else None
            return Landed(int(summary[_END]), commit, self._gaps())
        raise ConfigurationError(
            f"table {self.name} has records that were not landed from a stream, or no snapshot"
            " is left that says how far it has landed: name another table"
        )

    def append(
        self, columns: pa.Schema, start_offset: int, expected_offset: int | None
    ) -> PendingAppend:
        """Begin to add the records from `start_offset` on to what has landed up to `expected`.

        Columns and wider types that the rows have and the table lacks are added. A start beyond
        what was expected is a gap, which the table keeps. Raises LakeConflictError if the stream
        has landed up to another offset.
        """
        landed = self.landed()
        if (None if landed is None else landed.end_offset) != expected_offset:
            raise LakeConflictError(f"another process has committed to table {self.name}")
        self._forbid_retries()
        changes = self._table.transaction()
        try:
            with changes.update_schema() as update:
                update.union_by_name(columns)
        except ValidationError as error:
            raise SchemaError(
                f"table {self.name} cannot have the columns of the stream: {error}. Name another"
                " table"
            ) from error
        if expected_offset is not None and start_offset > expected_offset:
            gaps = [*self._gaps(), (expected_offset, start_offset)]
            changes.set_properties({_GAPS: json.dumps(gaps)})
        return PendingAppend(self._table, self._stream, changes, columns, start_offset)

    def compact(self, file_bytes: int) -> None:
        """Rewrite the small files at the end of the table as one, once there are enough of them.

        The offsets of their records stay, so nothing changes for a reader. Raises what `append`
        raises.
        """
        landed = self.landed()
        tasks = list(self._table.scan().plan_files())
        if landed is None or any(each.delete_files for each in tasks):
            return  # another engine has deleted rows, and compacts the table itself
        files = self._small_tail([each.file for each in tasks], file_bytes)
        if files:
            self._forbid_retries()
            start = self._bound(files[0].lower_bounds)
            summary = _summary(self._stream, start, landed.end_offset, landed.commit)
            changes = self._table.transaction()
            written = DataFiles(self.io, changes.table_metadata)
            try:
                for each in files:
                    written.add(read_file(self.io, each.file_path))
            except BaseException:
                written.discard()
                raise
            _commit(self._table, changes, written.finish(), summary, files)

    def _forbid_retries(self) -> None:
        if self._table.properties.get("commit.retry.num-retries") != "0":
            self._table = self._table.transaction().set_properties(_NO_RETRIES).commit_transaction()

    def _small_tail(self, files: list[DataFile], file_bytes: int) -> list[DataFile]:
        """Return the last files that are small together; none if rewriting them gains little.

        A day has a file of its own, so files of as many days stay as they are.
        """
        files.sort(key=lambda each: self._bound(each.lower_bounds))
        size, count = 0, 0
        while count < len(files):
            size += files[-count - 1].file_size_in_bytes
            if size > file_bytes:
                break
            count += 1
        tail = files[len(files) - count :]
        days = len({str(each.partition) for each in tail})
        return tail if count >= max(_COMPACTED_FILES, 2 * days) else []

    def _summaries(self) -> Iterator[Mapping[str, str]]:
        """Yield the summaries of the commits of records, newest first."""
        for each in ancestors_of(self._table.current_snapshot(), self._table.metadata):
            found = {} if each.summary is None else each.summary.additional_properties
            if _END in found:
                yield found

    def files(self) -> list[DataFileRange]:
        """Return the files of the current snapshot, by their first offsets.

        Raises ConfigurationError if another engine has deleted rows without rewriting their files.
        """
        found = []
        for task in self._table.scan().plan_files():
            if task.delete_files:
                raise ConfigurationError(
                    f"table {self.name} has rows that were deleted and are still in its files:"
                    " rewrite the files with the engine that has deleted them"
                )
            file = task.file
            found.append(
                DataFileRange(
                    file.file_path,
                    self._bound(file.lower_bounds),
                    self._bound(file.upper_bounds) + 1,
                    self._bound(file.upper_bounds, TIMESTAMP),
                    file.file_size_in_bytes,
                )
            )
        return sorted(found, key=lambda each: each.start)

    @property
    def io(self) -> FileIO:
        """Access to the files."""
        return self._table.io

    def has_column(self, name: str) -> bool:
        """Whether the table has a column of this name."""
        return name in self._table.schema().column_names

    def _bound(self, bounds: Mapping[int, bytes], column: str = OFFSET) -> int:
        field_id = self._table.schema().find_field(column).field_id
        return int.from_bytes(bounds[field_id], "little", signed=True)

    def expire(self, older_than: datetime) -> None:
        """Remove the snapshots before a time, and the files that only they refer to.

        The current one stays. Files that a killed process has left are removed as well.
        """
        self._table.refresh()  # another process may have removed some
        before = self._files()
        try:
            self._table.maintenance.expire_snapshots().older_than(older_than).commit()
        except (CommitFailedException, ValueError) as error:  # another process removes them
            raise LakeConflictError(f"table {self.name} refused a commit: {error}") from error
        self._table.refresh()
        kept = self._files()
        for path in before - kept:
            with suppress(FileNotFoundError):
                self._table.io.delete(path)
        kept.add(self._table.metadata_location)
        kept.update(each.metadata_file for each in self._table.metadata.metadata_log)
        orphaned_at = datetime.now(UTC) - _ORPHAN_AGE
        delete_unreferenced(self._table.io, self._table.metadata, kept, orphaned_at)

    def _files(self) -> set[str]:
        """Return the files that any snapshot refers to."""
        found: set[str] = set()
        seen: set[str] = set()
        for snapshot in self._table.snapshots():
            found.add(snapshot.manifest_list)
            for manifest in snapshot.manifests(self._table.io):
                if manifest.manifest_path not in seen:
                    seen.add(manifest.manifest_path)
                    entries = manifest.fetch_manifest_entry(self._table.io, discard_deleted=False)
                    found.update(each.data_file.file_path for each in entries)
        return found | seen

    @property
    def name(self) -> str:
        """The name, with that of its namespace."""
        return ".".join(self._table.name())

    def _gaps(self) -> tuple[tuple[int, int], ...]:
        found: list[Any] = json.loads(self._table.properties.get(_GAPS, "[]"))
        return tuple((start, end) for start, end in found)

    def _check_stream(self, stream_id: str | None, created_ms: str | None) -> None:
        own = str(self._stream.stream_id), str(self._stream.created_at_ms)
        if (stream_id, created_ms) != own:
            raise ConfigurationError(
                f"table {self.name} has the records of a stream with id {stream_id}, and"
                f" {self._stream.label} has id {own[0]}: it was created again, or the table is of"
                " another stream. Name another table, or drop this one"
            )


def _summary(
    stream: StreamInfo, start_offset: int, end_offset: int, commit: StoreCommit | None
) -> dict[str, str]:
    summary = {
        "sbp.stream-id": str(stream.stream_id),
        "sbp.stream-created-ms": str(stream.created_at_ms),
        _START: str(start_offset),
        _END: str(end_offset),
    }
    if commit is not None:
        summary |= {"sbp.commit": str(commit.number), "sbp.life": commit.life}
    return summary


def _commit(
    table: Table,
    changes: Transaction,
    made: Sequence[DataFile],
    summary: dict[str, str],
    replaced: Collection[DataFile] = (),
) -> None:
    try:
        update = changes.update_snapshot(snapshot_properties=summary)
        with update.overwrite() if replaced else update.merge_append() as snapshot:
            for each in replaced:
                snapshot.delete_data_file(each)
            for each in made:
                snapshot.append_data_file(each)
        changes.commit_transaction()
    except CommitFailedException as error:
        for each in made:
            with suppress(Exception):
                table.io.delete(each.file_path)
        name = ".".join(table.name())
        raise LakeConflictError(f"table {name} refused a commit: {error}") from error
    table.refresh()


def _create(catalog: Catalog, name: str, schema: pa.Schema) -> None:
    """Make a table that is partitioned by the day of the record, and sorted by offset."""
    namespace = name.rpartition(".")[0]
    catalog.create_namespace_if_not_exists(namespace)
    with catalog.create_table_transaction(name, schema, properties=_PROPERTIES) as changes:
        with changes.update_spec() as spec:
            spec.add_field(TIMESTAMP, DayTransform(), "day")
        with changes.update_sort_order() as order:
            order.asc(OFFSET, IdentityTransform())

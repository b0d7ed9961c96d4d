"""One Iceberg table of a stream: how far the stream has landed in it, and the next commit.

The summary of each snapshot that is made here says from which stream its records are, and where
they end, so data and progress are one commit, and nothing else is trusted after a crash:

    sbp.stream-id, sbp.stream-created-ms   the stream; ids are not used again, except by mistake
    sbp.start-offset, sbp.end-offset       the records of the snapshot
    sbp.commit, sbp.life                   the metadata of the cluster, as it was known then

A commit names the snapshot that it follows. If another process has committed since, the catalog
refuses it. PyIceberg would repeat it on top of that, and so land the records twice: the table
property `commit.retry.num-retries` forbids that.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Self

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.table.snapshots import ancestors_of
from pyiceberg.transforms import DayTransform, IdentityTransform

from sbp_core.client.types import StoreCommit, StreamInfo
from sbp_core.errors import ConfigurationError
from sbp_core.lake.columns import OFFSET, TIMESTAMP

_END: Final = "sbp.end-offset"
_GAPS: Final = "sbp.gaps"
_NO_RETRIES: Final = {"commit.retry.num-retries": "0"}
_PROPERTIES: Final = {
    **_NO_RETRIES,
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}


_SMALL_FILES_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class Landed:
    """How far a stream has landed: all records below `end_offset`, except those of the gaps."""

    end_offset: int
    commit: StoreCommit | None
    gaps: tuple[tuple[int, int], ...] = ()


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
    error: str | None = None


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
            table = _create(catalog, name, schema)
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
            self._name,
            None if landed is None else landed.end_offset,
            int(summary.get("total-data-files", 0)),
            int(summary.get("total-files-size", 0)),
            () if landed is None else landed.gaps,
            self._table.metadata_location,
        )

    def landed(self) -> Landed | None:
        """Return how far the stream has landed; None if nothing has.

        Raises ConfigurationError if the records of the table are of something else.
        """
        snapshot = self._table.current_snapshot()
        if snapshot is None:
            return None
        for each in ancestors_of(snapshot, self._table.metadata):
            summary = each.summary
            if summary is not None and summary[_END] is not None:
                self._check_stream(summary["sbp.stream-id"], summary["sbp.stream-created-ms"])
                number, life = summary["sbp.commit"], summary["sbp.life"]
                commit = StoreCommit(int(number), life) if number and life else None
                return Landed(int(summary[_END] or 0), commit, self._gaps())
        raise ConfigurationError(
            f"table {self._name} has records that were not landed from a stream, or no snapshot"
            " is left that says how far it has landed: name another table"
        )

    def append(
        self,
        rows: pa.Table,
        *,
        start_offset: int,
        end_offset: int,
        expected_offset: int | None,
        commit: StoreCommit | None,
    ) -> None:
        """Add the records [start_offset, end_offset), where the stream has landed up to `expected`.

        Columns and wider types that the rows have and the table lacks are added. A start beyond
        what was expected is a gap, which the table keeps. Raises what the catalog and the object
        store raise: reload the table then, and see what it says.
        """
        if self._table.properties.get("commit.retry.num-retries") != "0":
            self._table = self._table.transaction().set_properties(_NO_RETRIES).commit_transaction()
        summary = self._summary(start_offset, end_offset, commit)
        with self._table.transaction() as changes:
            with changes.update_schema() as update:
                update.union_by_name(rows.schema)
            if expected_offset is not None and start_offset > expected_offset:
                gaps = [*self._gaps(), (expected_offset, start_offset)]
                changes.set_properties({_GAPS: json.dumps(gaps)})
            changes.append(rows, snapshot_properties=summary)
        self._table.refresh()

    def compact(self, file_bytes: int) -> None:
        """Rewrite the small files at the end of the table as one, once there are enough of them.

        The offsets of their records stay, so nothing changes for a reader.
        """
        files = self._table.inspect.files().to_pylist()
        tail, size = [], 0
        for each in sorted(files, key=_first_offset, reverse=True):
            size += each["file_size_in_bytes"]
            if size > file_bytes:
                break
            tail.append(each)
        landed = self.landed()
        if landed is None or len(tail) < _SMALL_FILES_MAX:
            return
        start = _first_offset(tail[-1])
        within = f"{OFFSET} >= {start}"
        rows = self._table.scan(row_filter=within).to_arrow().sort_by(OFFSET)
        summary = self._summary(start, landed.end_offset, landed.commit)
        with self._table.transaction() as changes:
            changes.overwrite(rows, overwrite_filter=within, snapshot_properties=summary)
        self._table.refresh()

    def expire(self, older_than: datetime) -> None:
        """Remove the snapshots before a time, and the files that only they refer to.

        The current one stays.
        """
        before = self._files()
        self._table.maintenance.expire_snapshots().older_than(older_than).commit()
        self._table.refresh()
        for path in before - self._files():
            with suppress(FileNotFoundError):
                self._table.io.delete(path)

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

    def _summary(
        self, start_offset: int, end_offset: int, commit: StoreCommit | None
    ) -> dict[str, str]:
        summary = {
            "sbp.stream-id": str(self._stream.stream_id),
            "sbp.stream-created-ms": str(self._stream.created_at_ms),
            "sbp.start-offset": str(start_offset),
            _END: str(end_offset),
        }
        if commit is not None:
            summary |= {"sbp.commit": str(commit.number), "sbp.life": commit.life}
        return summary

    @property
    def _name(self) -> str:
        return ".".join(self._table.name())

    def _gaps(self) -> tuple[tuple[int, int], ...]:
        found: list[Any] = json.loads(self._table.properties.get(_GAPS, "[]"))
        return tuple((start, end) for start, end in found)

    def _check_stream(self, stream_id: str | None, created_ms: str | None) -> None:
        own = str(self._stream.stream_id), str(self._stream.created_at_ms)
        if (stream_id, created_ms) != own:
            raise ConfigurationError(
                f"table {self._name} has the records of a stream with id {stream_id}, and"
                f" {self._stream.label} has id {own[0]}: it was created again, or the table is of"
                " another stream. Name another table, or drop this one"
            )


def _first_offset(file: dict[str, Any]) -> int:
    first: int = file["readable_metrics"][OFFSET]["lower_bound"]
    return first


def _create(catalog: Catalog, name: str, schema: pa.Schema) -> Table:
    """Make a table that is partitioned by the day of the record, and sorted by offset."""
    namespace = name.rpartition(".")[0]
    catalog.create_namespace_if_not_exists(namespace)
    with catalog.create_table_transaction(name, schema, properties=_PROPERTIES) as changes:
        with changes.update_spec() as spec:
            spec.add_field(TIMESTAMP, DayTransform(), "day")
        with changes.update_sort_order() as order:
            order.asc(OFFSET, IdentityTransform())
    return catalog.load_table(name)

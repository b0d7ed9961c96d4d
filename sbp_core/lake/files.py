"""Parquet files of a table: written by day with the ids of the columns, and read back.

PyArrow writes and reads the files. PyIceberg only names them, describes their statistics and
commits them: its own path from Arrow to Parquet (0.12) turns a null list, map or struct into an
empty one.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator
from contextlib import suppress
from datetime import datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.fs import FileSelector, FileSystem
from pyiceberg.io import FileIO
from pyiceberg.io.fileformat import FileFormatFactory
from pyiceberg.io.pyarrow import PyArrowFileIO, schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import IcebergType, ListType, MapType, StructType

from sbp_core.lake.columns import TIMESTAMP
from sbp_core.records import map_columns

GROUP_BYTES: Final = 4 << 20
"""Size of a row group in Arrow: up to twice as much, or the rest of a file. Where a partition of
Spark ends in a group, two tasks read it."""
_SMALL: Final = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
_FIELD_ID: Final = b"PARQUET:field_id"
_PARQUET: Final = FileFormat.PARQUET
_ENDINGS: Final = {"data": (".parquet",), "metadata": (".avro", ".metadata.json")}
"""How the names of files end that a commit writes, by their folder."""


class DataFiles:
    """New files of a table, one for each day of `_timestamp`: `add` writes as rows come.

    Nothing refers to the files before they are committed: `discard` deletes them.
    """

    def __init__(self, io: FileIO, metadata: TableMetadata) -> None:
        self._io = io
        self._metadata = metadata
        self._days: dict[object, _DayFile] = {}

    def add(self, rows: pa.Table) -> None:
        """Write rows; up to GROUP_BYTES of a day wait in memory for more."""
        for day, part in _by_day(rows):
            if day not in self._days:
                self._days[day] = _DayFile(self._io, self._metadata)
            self._days[day].add(part)

    def finish(self) -> list[DataFile]:
        """Write what waits, and return the files. Discards them if that fails."""
        try:
            return [each.finish() for each in self._days.values()]
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Delete the files."""
        for each in self._days.values():
            each.discard()


class _DayFile:
    """A file in the making, whose row groups are of about GROUP_BYTES."""

    def __init__(self, io: FileIO, metadata: TableMetadata) -> None:
        locations = load_location_provider(metadata.location, metadata.properties)
        self._path = locations.new_data_location(f"{uuid.uuid4()}.parquet")
        self._io = io
        self._metadata = metadata
        self._schema = pa.schema(_fields(metadata.schema().as_struct()))
        self._parts: list[pa.Table] = []
        self._bytes = 0
        self._writer = FileFormatFactory.get(_PARQUET).create_writer(
            io.new_output(self._path), metadata.schema(), metadata.properties
        )

    def add(self, part: pa.Table) -> None:
        self._parts.append(part)
        self._bytes += part.nbytes
        if self._bytes >= GROUP_BYTES:
            self._write()

    def finish(self) -> DataFile:
        self._write()
        self._writer.close()
        statistics, metadata = self._writer.result(), self._metadata
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self._path,
            file_format=_PARQUET,
            partition=statistics.partition(metadata.spec(), metadata.schema()),
            file_size_in_bytes=len(self._io.new_input(self._path)),
            sort_order_id=None,
            spec_id=metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )

    def discard(self) -> None:
        with suppress(Exception):
            self._writer.close()
        with suppress(Exception):
            self._io.delete(self._path)

    def _write(self) -> None:
        if not self._parts:
            return
        rows = pa.concat_tables([as_columns(each, self._schema) for each in self._parts])
        step = -(-rows.num_rows // max(1, self._bytes // GROUP_BYTES))
        for start in range(0, rows.num_rows, step):
            self._writer.write(rows.slice(start, step))
        self._parts, self._bytes = [], 0


def read_file(io: FileIO, path: str) -> pa.Table:
    """Return all rows of a file."""
    filesystem, location = file_system(io, path)
    return ds.ParquetFileFormat().make_fragment(location, filesystem).to_table()


def delete_unreferenced(
    io: FileIO, metadata: TableMetadata, referenced: Collection[str], older_than: datetime
) -> None:
    """Delete files of a table that it does not refer to.

    A process that was killed before its commit leaves data files and metadata. Younger files stay,
    because a commit of another process may be under way.
    """
    _, _, first = PyArrowFileIO.parse_location(metadata.location)
    known = {PyArrowFileIO.parse_location(each)[2] for each in referenced}
    for name, endings in _ENDINGS.items():
        filesystem, folder = file_system(io, f"{metadata.location}/{name}")
        for each in filesystem.get_file_info(FileSelector(folder, True, True)):
            is_ours = each.path.endswith(endings) and each.path.startswith(first)
            if is_ours and each.path not in known and each.mtime < older_than:
                filesystem.delete_file(each.path)


def file_system(io: FileIO, location: str) -> tuple[FileSystem, str]:
    """Return the file system of a location, and the path there."""
    if not isinstance(io, PyArrowFileIO):
        io = PyArrowFileIO(io.properties)
    scheme, host, path = PyArrowFileIO.parse_location(location, io.properties)
    return io.fs_by_scheme(scheme, host), path


def _by_day(rows: pa.Table) -> Iterator[tuple[object, pa.Table]]:
    days = rows[TIMESTAMP].cast(pa.date32(), safe=False)
    found = pc.unique(days)
    for day in found:
        yield day.as_py(), rows if len(found) == 1 else rows.filter(pc.equal(days, day))


def as_columns(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with the columns of a schema: absent ones are null, narrower types widened."""
    batches = [map_columns(each, schema) for each in rows.to_batches()]
    return pa.Table.from_batches(batches, batches[0].schema if batches else schema).cast(schema)


def _fields(kind: StructType) -> list[pa.Field]:
    """Return the fields of a struct in Arrow, with their ids."""
    return [
        _field(each.name, each.field_id, each.field_type, is_required=each.required)
        for each in kind.fields
    ]


def _field(name: str, field_id: int, kind: IcebergType, *, is_required: bool) -> pa.Field:
    arrow: pa.DataType
    if isinstance(kind, StructType):
        arrow = pa.struct(_fields(kind))
    elif isinstance(kind, ListType):
        element = "element", kind.element_id, kind.element_type
        arrow = pa.list_(_field(*element, is_required=kind.element_required))
    elif isinstance(kind, MapType):
        value = "value", kind.value_id, kind.value_type
        arrow = pa.map_(
            _field("key", kind.key_id, kind.key_type, is_required=True),
            _field(*value, is_required=kind.value_required),
        )
    else:
        arrow = schema_to_pyarrow(kind)
        arrow = _SMALL.get(arrow, arrow)
    metadata = {_FIELD_ID: str(field_id).encode()}
    return pa.field(name, arrow, nullable=not is_required, metadata=metadata)

"""The same rows through every path that hands rows to Spark, compared to what was written.

An example is a column of any type, with nulls and empty values at every level, on one path. Many
columns share a stream, so that an example costs milliseconds and not a Spark job.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

from sbp_core.client import Client, StreamSpec
from sbp_core.records import with_logical_type
from sbp_spark.logical_types import is_kept_by_arrow, logical_spark_schema
from tests.support.data.typed import append_columns
from tests.support.spark import Sbp, wait_until_over

ROWS = 8
COLUMNS_PER_STREAM = 40
START = dt.datetime.fromisoformat("1900-01-01")
END = dt.datetime.fromisoformat("9999-12-30")


def integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


SIMPLE: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), integers(8)),
    (pa.int16(), integers(16)),
    (pa.int32(), integers(32)),
    (pa.int64(), integers(64)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (pa.decimal128(9, 2), st.decimals(-(10**6), 10**6, allow_nan=False, places=2)),
    (pa.decimal128(38, 0), st.decimals(-(10**30), 10**30, allow_nan=False, places=0)),
    (pa.string(), st.text(max_size=5)),
    (pa.binary(), st.binary(max_size=5)),
    (pa.date32(), st.dates(START.date(), END.date())),
    (pa.timestamp("us", tz="UTC"), st.datetimes(START, END, timezones=st.just(dt.UTC))),
    (pa.timestamp("us"), st.datetimes(START, END)),
    (pa.duration("us"), st.timedeltas(-dt.timedelta(10**5), dt.timedelta(10**5))),
    (pa.time64("ns"), st.times()),
]
LOGICAL_TYPES = {
    pa.string(): "string collate UNICODE",
    pa.duration("us"): "interval day to minute",
    pa.time64("ns"): "time(3)",
}
KEYS = [(pa.string(), st.text(max_size=3)), (pa.int32(), integers(32))]


@st.composite
def kinds(draw: st.DrawFn, depth: int = 2) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    """A type, and values of it."""
    form = draw(st.sampled_from(["simple", "list", "map", "struct"]))
    if depth == 0 or form == "simple":
        return draw(st.sampled_from(SIMPLE))
    kind, values = draw(kinds(depth - 1))
    if form == "list":
        return pa.list_(pa.field("element", kind)), st.lists(st.none() | values, max_size=3)
    if form == "map":
        key_kind, keys = draw(st.sampled_from(KEYS))
        items = st.dictionaries(keys, st.none() | values, max_size=3)
        return pa.map_(key_kind, kind), items.map(lambda found: list(found.items()))
    other_kind, others = draw(st.sampled_from(SIMPLE))
    is_required = draw(st.booleans())
    fields = [pa.field("x", kind), pa.field("y", other_kind, nullable=not is_required)]
    others = others if is_required else st.none() | others
    return pa.struct(fields), st.fixed_dictionaries({"x": st.none() | values, "y": others})


@st.composite
def columns(draw: st.DrawFn) -> pa.Array:
    """A column of `ROWS` rows."""
    kind, values = draw(kinds())
    return pa.array(draw(st.lists(st.none() | values, min_size=ROWS, max_size=ROWS)), kind)


def with_logical_types(field: pa.Field) -> pa.Field:
    """The field with a logical type wherever several types of Spark are one in Arrow."""
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([with_logical_types(each) for each in kind])
    elif pa.types.is_map(kind):
        kind = pa.map_(*map(with_logical_types, (kind.key_field, kind.item_field)))
    elif pa.types.is_list(kind):
        kind = pa.list_(with_logical_types(kind.value_field))
    made = pa.field(field.name, kind, field.nullable)
    return with_logical_type(made, LOGICAL_TYPES.get(field.type))


def drawn_columns(count: int) -> list[pa.Array]:
    """`count` columns, other ones each time.

    Few of each run of Hypothesis: its first example is the simplest, and later ones repeat types.
    """
    found: list[pa.Array] = []
    groups: list[list[pa.Array]] = []
    types_differ = st.lists(columns(), min_size=5, max_size=5, unique_by=lambda each: each.type)

    @settings(
        max_examples=3,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(types_differ)
    def keep(group: list[pa.Array]) -> None:
        groups.append(group)

    while len(found) < count:
        groups.clear()
        keep()
        found += [column for group in groups[1:] for column in group]
    return found[:count]


def is_null_element(array: pa.Array) -> bool:
    """Whether a list or a map has a null among its elements or values, at any level."""
    return any(map(_has_null_inside, array.to_pylist()))


def _has_null_inside(value: Any) -> bool:
    match value:
        case dict():
            return any(map(_has_null_inside, value.values()))
        case list():
            elements = [each[1] if isinstance(each, tuple) else each for each in value]
            return any(each is None or _has_null_inside(each) for each in elements)
        case _:
            return False


@dataclass
class Written:
    """Columns in two streams: as one large record batch, and as one batch per row."""

    rows: pa.RecordBatch
    whole: str
    pieces: str

    def names(self, *, may_come_with_plan: bool) -> list[str]:
        """The columns that may come with the plan, or the others.

        Those have null elements, or types that are equal in Arrow.
        """
        columns = zip(self.rows.schema, self.rows.columns, strict=True)
        return [
            field.name
            for field, column in columns
            if field.name[0] == "c"
            and may_come_with_plan
            == (
                not is_null_element(column)
                and is_kept_by_arrow(logical_spark_schema(pa.schema([field])))
            )
        ]


def write(client: Client, arrays: Sequence[pa.Array]) -> Written:
    """Write columns, and numbered rows beside them."""
    count = len(arrays[0])
    named = {f"c{number}": array for number, array in enumerate(arrays)}
    rows = pa.RecordBatch.from_pydict({"row": range(count), **named})
    fields = [
        with_logical_types(field) if number % 2 else field
        for number, field in enumerate(rows.schema)
    ]
    rows = pa.RecordBatch.from_arrays(rows.columns, schema=pa.schema(fields))
    written = Written(rows, f"whole-{uuid4().hex}", f"pieces-{uuid4().hex}")
    client.create_streams([StreamSpec(written.whole), StreamSpec(written.pieces)])
    append_columns(client, written.whole, rows)
    for number in range(count):
        append_columns(client, written.pieces, rows.slice(number, 1))
    return written


class Paths:
    """Every path from the streams to Spark's rows; a folder for checkpoints."""

    def __init__(self, sbp: Sbp, client: Client, written: Written, folder: Path) -> None:
        self._sbp = sbp
        self._client = client
        self._written = written
        self._folder = folder

    def check(self) -> int:
        """Compare what comes on each path; return how many columns were compared."""
        left = self._written.names(may_come_with_plan=False)
        others = self._written.names(may_come_with_plan=True)
        everything = left + others
        whole, pieces = self._written.whole, self._written.pieces
        tasks = {"minPartitions": "2"}
        count = 0
        for path, names, read in [
            ("batch", everything, lambda to: self._batch(whole, to)),
            ("batch, joined", everything, lambda to: self._batch(pieces, to)),
            ("tasks", everything, lambda to: self._stream(whole, to, **tasks)),
            ("tasks, joined", everything, lambda to: self._stream(pieces, to, **tasks)),
            ("plan, or not", left, lambda to: self._stream(whole, to)),
            ("plan, or not, joined", left, lambda to: self._stream(pieces, to)),
            ("plan", others, lambda to: self._stream(whole, to, trims=True)),
            ("plan, joined", others, lambda to: self._stream(pieces, to, trims=True)),
        ]:
            self._check_path(path, names, read)
            count += len(names)
        return count

    def _check_path(
        self, path: str, names: Sequence[str], read: Callable[[StructType], pa.Table]
    ) -> None:
        kinds = logical_spark_schema(self._written.rows.schema)
        fields = [StructField(each.name, each.dataType) for each in kinds]
        asked = StructType([each for each in fields if each.name in {"row", *names}])
        found = read(asked.toNullable()).sort_by("row")
        for name in ("row", *names):
            expected = self._written.rows.column(name)
            came = found.column(name).to_pylist()
            assert repr(came) == repr(expected.to_pylist()), (path, name, expected.type)

    def _batch(self, stream: str, schema: StructType, **options: str) -> pa.Table:
        reader = self._sbp.spark.read.format("sbp").schema(schema)
        options = {"endpoint": self._sbp.endpoint, "streams": stream, **options}
        return reader.options(**options).load().toArrow()

    def _stream(
        self, stream: str, schema: StructType, *, trims: bool = False, **options: str
    ) -> pa.Table:
        """Read micro-batches; with `trims` their records are gone before any task could read."""
        reader = self._sbp.spark.readStream.format("sbp").schema(schema)
        options = {"endpoint": self._sbp.endpoint, "streams": stream, **options}
        frame = reader.options(startingOffsets="earliest", **options).load()
        found: list[pa.Table] = []

        def process(batch: DataFrame, _: int) -> None:
            if trims:
                (info,) = self._client.describe_streams([stream])
                self._client.trim_streams({info.stream_id: ROWS})
            found.append(batch.toArrow())

        writer = frame.writeStream.foreachBatch(process)
        writer = writer.option("checkpointLocation", str(self._folder / uuid4().hex))
        wait_until_over(writer.trigger(availableNow=True).start())
        return pa.concat_tables(found)


def check_every_path(sbp: Sbp, client: Client, folder: Path, examples: int) -> int:
    """Check at least `examples` examples, or as many as EXAMPLES in the environment says."""
    wanted = int(os.environ.get("EXAMPLES") or examples)
    sbp.spark.conf.set("spark.sql.timeType.enabled", "true")  # as queries need it for times of day
    count = 0
    while count < wanted:
        written = write(client, drawn_columns(COLUMNS_PER_STREAM))
        count += Paths(sbp, client, written, folder).check()
    return count

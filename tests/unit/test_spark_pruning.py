"""Record batches from which columns were left out, as what Spark was promised."""

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from sbp_core import limits
from sbp_core.records import encode_columns, maybe_cut
from sbp_spark.column_schema import METADATA_FIELD
from sbp_spark.logical_types import logical_arrow_schema
from sbp_spark.options.endpoints import Servers
from sbp_spark.reading.input_partitions import decode_chunks
from sbp_spark.reading.layout import ColumnsLayout, RowsLayout
from sbp_spark.reading.losses import DamagedRecordsError
from sbp_spark.reading.partition_planning import StreamSpan
from sbp_spark.reading.schema_versions import SchemaVersions
from sbp_spark.row_schema import source_schema
from tests.support.data.typed import rows_in, schema_of, versions_of
from tests.support.spark import chunk_of

METADATA = logical_arrow_schema(StructType([METADATA_FIELD])).field(0)
FIRST = schema_of(id=pa.int32())


class FakePlacementDriver:
    """Knows schemas, and notes of which streams it is asked."""

    def __init__(self, **schemas):
        self.schemas = {int(name.removeprefix("s")): each for name, each in schemas.items()}
        self.asked = []

    def describe_schemas(self, stream_ids, *, newest_only=False):
        self.asked.append(list(stream_ids))
        return {each: versions_of(each, *self.schemas[each]) for each in stream_ids}


def span(end):
    return StreamSpan(7, "s7", 0, 0, end, ("host:1",))


def columns_layout(schema, driver, **options):
    versions = SchemaVersions(driver, Servers(("nowhere:1",)), {})
    return ColumnsLayout(schema, versions, **options)


def batch(**options):
    return encode_columns(
        rows_in(LARGE, LARGE_ROWS), LARGE, stream_id=7, **{"timestamp_ms": 0, **options}
    )


def read(layout, payload):
    chunk = chunk_of(0, memoryview(payload))
    found = decode_chunks([chunk], [span(LARGE_COUNT)], layout)
    return [row for each in found for row in each.to_pylist()]


LARGE_COUNT = limits.CUT_BATCH_BYTES_MIN // 8
LARGE = schema_of(
    id=pa.int64(),
    place=pa.struct([("x", pa.float64()), ("y", pa.float64())]),
    at=pa.timestamp("us", tz="UTC"),
)
LARGE_ROWS = [
    {"id": n, "place": {"x": n / 2, "y": n / 4} if n % 3 else None, "at": n}
    for n in range(LARGE_COUNT)
]


def cut(payload, projections):
    """A batch as a server sends it for these projections."""
    view = memoryview(payload)
    found = maybe_cut(view, len(view), projections, 0)
    assert found is not None
    return b"".join((found.head, *(view[start:end] for start, end in found.runs)))


@pytest.mark.parametrize("has_metadata", [False, True])
def test_batches_without_the_other_columns_are_read_as_whole_ones(has_metadata):
    """Fields of structs, too; and times are read where the writer put them."""
    wanted = pa.schema([("place", pa.struct([("y", pa.float64())]))])
    wanted = wanted.append(METADATA) if has_metadata else wanted
    whole = batch(timestamp_column="at")
    driver = FakePlacementDriver(s7=[FIRST, LARGE])
    layout = columns_layout(wanted, driver, has_metadata=has_metadata)
    projections = layout.projections(7)
    assert layout.projections(7) == projections
    assert driver.asked == [[7]]
    pruned = cut(whole, projections)
    assert len(pruned) < (0.6 if has_metadata else 0.4) * len(whole)
    assert read(layout, pruned) == read(layout, whole)


def test_columns_that_nobody_asked_for_are_damage():
    driver = FakePlacementDriver(s7=[LARGE])
    ids = pa.schema([("id", pa.int64())])
    asked = columns_layout(ids, driver).projections(7)
    pruned = cut(batch(), asked)
    with pytest.raises(DamagedRecordsError, match="other columns"):
        read(columns_layout(LARGE.arrow, driver), pruned)


def test_all_columns_are_asked_for_without_a_projection():
    driver = FakePlacementDriver(s7=[LARGE], s8=[])
    layout = columns_layout(LARGE.arrow, driver)
    assert [layout.projections(each) for each in (7, 8, 8)] == [()] * 3
    assert driver.asked == [[7], [8]]
    headers = source_schema(include_headers=True)
    assert RowsLayout(logical_arrow_schema(headers)).projections(7) == ()

"""Which columns a source has, and which of them may be asked for."""

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
)

from sbp_core.client import StreamInfo
from sbp_core.errors import (
    ConfigurationError,
    NotFoundError,
    SchemaError,
    StatusCode,
    UnsupportedError,
)
from sbp_core.records import StreamSchema
from sbp_spark.logical_types import logical_arrow_schema
from sbp_spark.reading.input_partitions import SbpBatchReader
from sbp_spark.reading.layout import Form
from sbp_spark.reading.source_streams import SourceColumns, find_columns
from sbp_spark.row_schema import source_schema
from sbp_spark.streaming.stream_reader import SbpStreamReader
from tests.support.data.typed import schema_of, versions_of
from tests.support.fake_streams import ALL, FakeCluster, use_fake_cluster
from tests.support.spark import only_fault, source

ORDERS = schema_of(id=pa.int32(), price=pa.decimal128(9, 2))
STREAMS = {
    1: StreamInfo(1, "a", 1, 0, 100),
    2: StreamInfo(2, "b", 1, 0, 200),
    3: StreamInfo(3, "c", 1, 0, 300),
}


def ddl(found):
    return ", ".join(
        f"{each.name} {each.dataType.simpleString()}{'' if each.nullable else ' not null'}"
        for each in found.schema
    )


def find(*schemas, **options):
    """The columns of as many streams as there are schemas; None is no schema."""
    cluster = FakeCluster()
    cluster.schemas = {
        stream_id: versions_of(stream_id, schema)
        for stream_id, schema in enumerate(schemas, start=1)
        if schema is not None
    }
    streams = {stream_id: STREAMS[stream_id] for stream_id in range(1, len(schemas) + 1)}
    return find_columns(cluster, source(streaming=None, **options), streams)


def test_a_stream_with_a_schema_is_read_as_columns_and_one_without_as_rows():
    columns = StructType(
        [StructField("id", IntegerType()), StructField("price", DecimalType(9, 2))]
    )
    assert find(ORDERS) == SourceColumns(columns, Form.COLUMNS, columns)
    assert find(None) == SourceColumns(
        source_schema(include_headers=False), Form.ROWS, source_schema(include_headers=True)
    )
    assert find(ORDERS, encoding="rows").form is Form.ROWS
    assert find(None, encoding="rows", includeHeaders="true").schema.names[-1] == "headers"
    assert find(None, includeHeaders="true").schema.names[-1] == "headers"


def test_the_newest_version_counts():
    cluster = FakeCluster()
    cluster.schemas = {1: versions_of(1, schema_of(id=pa.int8()), ORDERS)}
    found = find_columns(cluster, source(), {1: STREAMS[1]})
    assert found.schema.names == ["id", "price"]


def test_metadata_stand_behind_the_columns():
    found = find(ORDERS, includeMetadata="true")
    assert found.form is Form.COLUMNS_WITH_METADATA
    assert ddl(found) == (
        "id int, price decimal(9,2), _metadata struct<stream:string,stream_id:bigint,"
        "range_index:int,offset:bigint,timestamp:timestamp>"
    )


PLACES = schema_of(
    id=pa.int32(),
    place=pa.struct([("city", pa.string()), ("zip", pa.int32())]),
    tags=pa.list_(pa.struct([("name", pa.string()), ("rank", pa.int8())])),
)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ("tags,ID", "tags array<struct<name:string,rank:tinyint>>, id int"),
        (" place.zip , tags.Name", "place struct<zip:int>, tags array<struct<name:string>>"),
        ("place.zip,place,id", "place struct<city:string,zip:int>, id int"),
        ("place,place.zip", "place struct<city:string,zip:int>"),
        ("place.zip,place.city", "place struct<zip:int,city:string>"),
    ],
)
def test_some_columns_may_be_named(columns, expected):
    found = find(PLACES, columns=columns)
    assert ddl(found) == expected
    found.check(found.schema)
    assert find(PLACES, columns="id", includeMetadata="true").schema.names == ["id", "_metadata"]


def test_some_columns_of_plain_records_may_be_named():
    found = find(None, columns="headers,value,offset")
    assert ddl(found) == "headers map<string,binary>, value binary, offset bigint not null"
    found.check(found.schema)


@pytest.mark.parametrize(
    ("schema", "columns", "told"),
    [
        (PLACES, "id,plac", "column plac does not exist; did you mean place?"),
        (PLACES, "place.town", "column place.town does not exist"),
        (PLACES, "id.x", "column id.x does not exist: id is no struct"),
        (None, "id", "column id does not exist"),
    ],
)
def test_columns_that_do_not_exist_are_named(schema, columns, told):
    with pytest.raises(ConfigurationError, match="option columns") as raised:
        find(schema, columns=columns)
    assert told in str(raised.value)


def test_several_streams_have_the_columns_of_all():
    strict = StreamSchema.of(pa.schema([pa.field("id", pa.int64(), nullable=False)]))
    required = StreamSchema.of(
        pa.schema([pa.field("id", pa.int32(), nullable=False), pa.field("x", pa.string(), False)])
    )
    assert ddl(find(strict, required)) == "id bigint, x string"
    assert ddl(find(strict, None)) == "id bigint"
    assert ddl(find(strict, strict, ORDERS)) == "id bigint, price decimal(9,2)"


def test_streams_whose_schemas_contradict_are_named():
    with pytest.raises(SchemaError) as raised:
        find(schema_of(x=pa.string()), ORDERS, schema_of(id=pa.string()))
    assert "streams b and c cannot be read together" in str(raised.value)
    assert "column id is string" in str(raised.value)


@pytest.mark.parametrize(
    ("schema", "options", "told"),
    [
        (None, {"encoding": "columns"}, r"none of the streams \(a\) has a schema"),
        (None, {"includeMetadata": "true"}, "option includeMetadata: no stream has a schema"),
        (ORDERS, {"includeHeaders": "true"}, "option includeHeaders: the streams have schemas"),
        (
            schema_of(_Metadata=pa.string()),
            {"includeMetadata": "true"},
            "the streams have a column _metadata of their own",
        ),
    ],
)
def test_columns_that_the_streams_lack_are_refused(schema, options, told):
    with pytest.raises(ConfigurationError, match=told):
        find(schema, **options)


def test_there_is_no_stream():
    assert find().form is Form.ROWS
    with pytest.raises(ConfigurationError, match="there are none"):
        find(encoding="columns")


class OldPlacementDriver(FakeCluster):
    def describe_schemas(self, stream_ids, *, newest_only=False):
        raise UnsupportedError(StatusCode.UNSUPPORTED_OPERATION, "no schemas")


def test_a_placement_driver_without_schemas_has_rows():
    streams = {1: STREAMS[1]}
    assert find_columns(OldPlacementDriver(), source(), streams).form is Form.ROWS
    with pytest.raises(UnsupportedError):
        find_columns(OldPlacementDriver(), source(encoding="columns"), streams)


def test_a_stream_that_is_deleted_is_left_to_others():
    class Forgetful(FakeCluster):
        def describe_schemas(self, stream_ids, *, newest_only=False):
            if 2 in stream_ids:
                raise NotFoundError(StatusCode.NOT_FOUND, "stream 2")
            return super().describe_schemas(stream_ids, newest_only=newest_only)

    cluster = Forgetful(a=[1, 100, 0, 50])
    cluster.schemas = {1: versions_of(1, ORDERS)}
    assert find_columns(cluster, source(), STREAMS).form is Form.COLUMNS


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"encoding": "columns", "includeHeaders": "true"}, "includeHeaders is given with"),
        ({"encoding": "rows", "includeMetadata": "true"}, "includeMetadata is given with"),
        ({"includeHeaders": "true", "includeMetadata": "true"}, "beside includeHeaders"),
        ({"includeHeaders": "true", "columns": "value"}, "includeHeaders is given beside columns"),
        ({"columns": "a,,b"}, "columns is 'a,,b'; expected names of columns"),
        ({"columns": "a."}, "columns is 'a.'; expected names of columns"),
        ({"encoding": "arrow"}, "encoding is 'arrow'; expected auto or rows or columns"),
    ],
)
def test_options_that_contradict(options, told):
    assert told in only_fault(**options)


ALL_TYPES = pa.schema(
    [
        ("bool", pa.bool_()),
        *((f"int{bits}", kind) for bits, kind in
          ((8, pa.int8()), (16, pa.int16()), (32, pa.int32()), (64, pa.int64()))),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("decimal", pa.decimal128(38, 18)),
        ("string", pa.string()),
        ("binary", pa.binary()),
        ("date", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("took", pa.duration("us")),
        ("time", pa.time64("ns")),
        pa.field("required", pa.int64(), nullable=False),
        ("list", pa.list_(pa.field("item", pa.timestamp("us"), nullable=False))),
        ("map", pa.map_(pa.string(), pa.field("value", pa.duration("us"), nullable=False))),
        (
            "struct",
            pa.struct(
                [
                    pa.field("value", pa.binary(), nullable=False),
                    pa.field("metadata", pa.list_(pa.struct([("x", pa.time64("ns"))]))),
                ]
            ),
        ),
    ]
)  # fmt: skip


OPEN_TYPES = pa.schema(
    [
        *(field for field in ALL_TYPES if field.name not in {"required", "list", "map", "struct"}),
        ("required", pa.int64()),
        ("list", pa.list_(pa.field("element", pa.timestamp("us")))),
        ("map", pa.map_(pa.string(), pa.duration("us"))),
        (
            "struct",
            pa.struct(
                [
                    ("value", pa.binary()),
                    (
                        "metadata",
                        pa.list_(pa.field("element", pa.struct([("x", pa.time64("ns"))]))),
                    ),
                ]
            ),
        ),
    ]
)
"""The same, with nulls wherever there may be any."""


def test_every_type_is_one_of_sparks_and_back():
    schema = StreamSchema.of(ALL_TYPES)
    found = find(schema)
    assert {each.name: type(each.dataType) for each in found.schema} == {
        "bool": BooleanType,
        "int8": ByteType,
        "int16": ShortType,
        "int32": IntegerType,
        "int64": LongType,
        "float": FloatType,
        "double": DoubleType,
        "decimal": DecimalType,
        "string": StringType,
        "binary": BinaryType,
        "date": DateType,
        "at": TimestampType,
        "local": TimestampNTZType,
        "took": DayTimeIntervalType,
        "time": TimeType,
        "required": LongType,
        "list": ArrayType,
        "map": MapType,
        "struct": StructType,
    }
    assert logical_arrow_schema(found.schema).equals(OPEN_TYPES)
    found.check(found.schema)


def test_nothing_is_promised_to_have_a_value_but_keys():
    inside = pa.struct([pa.field("x", pa.int32(), nullable=False)])
    kinds = {
        "list": pa.list_(pa.field("element", inside, nullable=False)),
        "map": pa.map_(inside, pa.field("value", inside, nullable=False)),
        "struct": pa.struct([pa.field("part", inside, nullable=False)]),
    }
    schema = StreamSchema.of(pa.schema([pa.field(*each, nullable=False) for each in kinds.items()]))
    part = columns(x=IntegerType())
    assert find(schema).schema == columns(
        list=ArrayType(part),
        map=MapType(required("x", IntegerType()), part),
        struct=columns(part=part),
    )


NESTED = StreamSchema.of(
    pa.schema(
        [
            pa.field("id", pa.int32(), nullable=False),
            ("price", pa.decimal128(9, 2)),
            ("tags", pa.list_(pa.int16())),
            ("names", pa.map_(pa.string(), pa.float32())),
            ("place", pa.struct([("x", pa.int32()), pa.field("y", pa.string(), nullable=False)])),
        ]
    )
)


def columns(**types):
    return StructType([StructField(name, kind) for name, kind in types.items()])


def required(name, kind):
    return StructType([StructField(name, kind, nullable=False)])


def metadata(**types):
    return columns(_metadata=columns(**types))


@pytest.mark.parametrize(
    "given",
    [
        columns(id=IntegerType()),
        columns(id=LongType()),
        columns(price=DecimalType(20, 4), id=LongType()),
        columns(tags=ArrayType(LongType()), names=MapType(StringType(), DoubleType())),
        columns(place=columns(y=StringType(), x=LongType())),
    ],
)
def test_readable_schemas(given):
    find(NESTED).check(given)
    find(NESTED, includeMetadata="true").check(
        StructType([*metadata(timestamp=TimestampType(), offset=LongType()), *given])
    )


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (columns(id=ShortType()), "column id smallint; expected id int: cast it after"),
        (columns(id=StringType()), "column id string; expected id int: cast it after"),
        (columns(id=DoubleType()), "column id double"),
        (required("id", IntegerType()), "or leave not null out"),
        (columns(place=required("y", StringType())), "y string not null; expected place.y string"),
        (columns(price=DecimalType(9, 1)), "price decimal(9,1); expected price decimal(9,2)"),
        (required("price", DecimalType(9, 2)), "or leave not null out"),
        (columns(prize=DecimalType(9, 2)), "column prize does not exist; did you mean price?"),
        (columns(Prize=DecimalType(9, 2)), "column Prize does not exist; did you mean price?"),
        (columns(Price=DoubleType()), "column Price double; expected price decimal(9,2)"),
        (columns(Place=columns(Z=IntegerType())), "column Place.Z does not exist"),
        (columns(tags=ArrayType(ByteType())), "tags.element tinyint; expected tags.element small"),
        (columns(tags=ArrayType(ShortType(), False)), "tags.element smallint not null"),
        (columns(tags=StringType()), "column tags string"),
        (columns(names=MapType(IntegerType(), FloatType())), "column names map<int,float>"),
        (columns(names=MapType(StringType(), IntegerType())), "column names.value int; expected"),
        (columns(place=columns(z=IntegerType())), "column place.z does not exist"),
        (columns(place=columns(x=ShortType())), "column place.x smallint; expected place.x int"),
        (columns(place=columns()), "there is no column in place"),
        (columns(), "there is no column; name one"),
        (StructType(columns(id=IntegerType()).fields * 2), "column id occurs twice"),
        (metadata(offset=LongType()), "column _metadata does not exist"),
    ],
)
def test_schemas_that_are_refused(given, told):
    with pytest.raises(ConfigurationError) as raised:
        find(NESTED).check(given)
    assert told in str(raised.value)
    assert "if they have changed, load again" in str(raised.value)


def test_names_may_differ_in_case_as_they_may_in_spark():
    found = find(NESTED)
    given = columns(
        ID=IntegerType(),
        Tags=ArrayType(LongType()),
        PLACE=columns(X=LongType()),
        price=DecimalType(9, 2),
    )
    found.check(given)
    named = columns(
        id=IntegerType(),
        tags=ArrayType(LongType()),
        place=columns(x=LongType()),
        price=DecimalType(9, 2),
    )
    assert found.for_query(given).renamed == logical_arrow_schema(named)
    assert found.for_query(columns(id=IntegerType())).renamed is None


def test_a_hint_has_the_case_of_the_stream():
    with pytest.raises(
        ConfigurationError, match=r"customr does not exist; did you mean Customer\?"
    ):
        find(schema_of(ID=pa.int32(), Customer=pa.string())).check(columns(customr=StringType()))


def test_metadata_that_are_asked_for_are_in_the_schema():
    found = find(NESTED, includeMetadata="true")
    with pytest.raises(ConfigurationError, match="_metadata is left out, but includeMetadata asks"):
        found.check(columns(id=IntegerType()))
    with pytest.raises(ConfigurationError, match=r"_metadata\.offset string"):
        found.check(metadata(offset=StringType()))


@pytest.fixture
def cluster(monkeypatch):
    fake = use_fake_cluster(monkeypatch)
    fake.schemas = {1: versions_of(1, ORDERS)}
    return fake


def stream_reader(given, **options):
    options = {"endpoint": "h:1", "streams": "a", "startingOffsets": "earliest"} | options
    return SbpStreamReader(options, given)


@pytest.mark.parametrize(
    ("options", "form"),
    [({}, Form.COLUMNS), ({"includeMetadata": "true"}, Form.COLUMNS_WITH_METADATA)],
)
def test_tasks_get_how_to_read(cluster, options, form):
    given = metadata(offset=LongType()) if options else columns(id=LongType())
    query = stream_reader(given, **options)
    begin = query.initialOffset()
    (planned,) = query.partitions(begin, query.latestOffset(begin, ALL))
    assert planned.columns.form is form
    batch_options = source(False, streams="a", **options)
    (planned,) = SbpBatchReader(batch_options, given).partitions()
    assert planned.columns.form is form


def test_a_streaming_query_keeps_what_it_was_when_it_started(cluster):
    query = stream_reader(columns(id=IntegerType()))
    begin = query.initialOffset()
    cluster.schemas = {1: versions_of(1, ORDERS, schema_of(id=pa.string()))}
    (planned,) = query.partitions(begin, query.latestOffset(begin, ALL))
    assert planned.columns.form is Form.COLUMNS
    with pytest.raises(ConfigurationError, match="column id int; expected id string"):
        stream_reader(columns(id=IntegerType())).initialOffset()


def test_a_batch_says_which_columns_are_not_there(cluster):
    with pytest.raises(ConfigurationError, match="column prize does not exist"):
        SbpBatchReader(source(False, streams="a"), columns(prize=IntegerType())).partitions()

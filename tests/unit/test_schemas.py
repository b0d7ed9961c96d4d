"""The committed wire tables are those of the schemas, and FlatBuffers' own code agrees."""

import importlib
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import flatbuffers
import pytest

from sbp_core.wire import headers
from sbp_core.wire._generated import LAYOUTS
from sbp_core.wire.flat import Bytes, Scalar, Table, Text, Vector
from sbp_core.wire.headers import decode_header, encode_header
from tests.support.tables import needs_flatc

ROOT = Path(__file__).parents[2]


def field(table, name):
    (found,) = [item for item in LAYOUTS[table] if item.name == name]
    return found.id, found.kind, found.default


@needs_flatc
def test_the_committed_tables_are_those_of_the_schemas():
    told = subprocess.run(
        [sys.executable, ROOT / "schemas" / "generate.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stdout + told.stderr


@needs_flatc
def test_one_line_declares_an_operation(tmp_path):
    for source in (ROOT / "schemas").iterdir():
        if source.is_file():
            shutil.copy(source, tmp_path)
    schema = tmp_path / "headers.fbs"
    line = 'COUNT_X(RangeId): StreamRange (opcode: "0x7003", extension, payload);'
    schema.write_text(schema.read_text("utf-8").rstrip().removesuffix("}") + line + "}", "utf-8")
    generate = runpy.run_path(str(tmp_path / "generate.py"))
    made = {"__name__": "made"}
    exec(generate["render"](), made)
    opcode = made["Opcode"](0x7003)
    assert opcode.name == "COUNT_X"
    assert made["OPERATIONS"][opcode] == (made["RangeId"], made["StreamRange"])
    assert opcode in made["WITH_PAYLOAD"]


# Ids, types and defaults are the wire: changing the schema must not be able to change them quietly.


PINNED = [
    ("Status", "code", (0, Scalar("h"), 0)),
    ("Status", "detail", (2, Bytes(), None)),
    ("SystemErrorResponse", "status", (0, Table("Status"), None)),
    ("HeartbeatRequest", "client_role", (1, Scalar("b"), 0)),
    ("HeartbeatRequest", "features", (3, Vector(Table("Feature")), None)),
    ("HeartbeatResponse", "status", (3, Table("Status"), None)),
    ("RangeServer", "server_id", (0, Scalar("i"), -1)),
    ("StreamRange", "stream_id", (0, Scalar("q"), -1)),
    ("StreamRange", "range_index", (1, Scalar("i"), -1)),
    ("StreamRange", "end_offset", (3, Scalar("q"), 0)),
    ("StreamRange", "servers", (5, Vector(Table("ReplicaServer")), None)),
    ("RangeId", "end_offset", (2, Scalar("q"), -1)),
    ("AppendInfo", "stream_range", (0, Table("StreamRange"), None)),
    ("AppendInfo", "batch_length", (2, Scalar("i"), 0)),
    ("AppendInfo", "stream_id", (3, Scalar("q"), -1)),
    ("AppendInfo", "txn_id", (6, Text(), None)),
    ("AppendResult", "base_offset", (2, Scalar("q"), 0)),
    ("FetchInfo", "fetch_offset", (2, Scalar("q"), 0)),
    ("FetchInfo", "stream_id", (4, Scalar("q"), -1)),
    ("FetchInfo", "end_offset", (5, Scalar("q"), -1)),
    ("FetchResult", "batch_count", (2, Scalar("i"), 0)),
    ("FetchResult", "batch_length", (4, Scalar("i"), -1)),
    ("Stream", "replica_nums", (1, Scalar("b"), 0)),
    ("Stream", "retention_period_ms", (2, Scalar("q"), 0)),
    ("Stream", "retention_bytes", (6, Scalar("q"), -1)),
    ("DescribeStreamsRequest", "stream_ids", (1, Vector(Scalar("q")), None)),
    ("DescribeStreamsRequest", "names", (2, Vector(Text()), None)),
    ("LookupOffsetInfo", "start_offset", (3, Scalar("q"), 0)),
    ("LookupOffsetResult", "append_time_ms", (4, Scalar("q"), -1)),
    ("Cursor", "next_offset", (1, Scalar("q"), -1)),
    ("Cursor", "group", (4, Text(), None)),
    ("ReportMetricsRequest", "range_active_cnt", (17, Scalar("h"), 0)),
    ("RecordBatchMeta", "stream_id", (0, Scalar("q"), 0)),
    ("RecordBatchMeta", "flags", (1, Scalar("h"), 0)),
    ("RecordBatchMeta", "base_offset", (2, Scalar("q"), 0)),
    ("RecordBatchMeta", "last_offset_delta", (3, Scalar("i"), 0)),
    ("RecordBatchMeta", "base_timestamp", (4, Scalar("q"), 0)),
    ("RecordBatchMeta", "properties", (5, Vector(Table("KeyValue")), None)),
]


def test_fields_are_pinned():
    found = [(table, name, field(getattr(headers, table), name)) for table, name, _ in PINNED]
    assert found == PINNED


def test_client_roles_are_pinned():
    assert [(role.name, role.value) for role in headers.ClientRole] == [
        ("UNSPECIFIED", 0),
        ("PD", 1),
        ("RANGE_SERVER", 2),
        ("CLIENT", 3),
    ]


def test_ids_count_up_without_gaps():
    for table, fields in LAYOUTS.items():
        assert [item.id for item in fields] == list(range(len(fields))), table.__name__


def test_the_worked_heartbeat():
    """Bytes as flatc lays them out: role 3 and client id "c1"."""
    data = "0c00000008000c0008000700080000000000000304000000020000006331000000000000"
    value = decode_header(headers.HeartbeatRequest, bytes.fromhex(data))
    assert value == headers.HeartbeatRequest(client_id="c1", client_role=headers.ClientRole.CLIENT)


# FlatBuffers' own generated code, on the other side of the wire.


@pytest.fixture(scope="module")
def official(tmp_path_factory):
    """A function that gives a module of the code that flatc itself generates for a table."""
    folder = tmp_path_factory.mktemp("official")
    sources = (ROOT / "schemas").glob("*.fbs")
    subprocess.run(["flatc", "--python", "--gen-object-api", "-o", folder, *sources], check=True)
    sys.path.insert(0, str(folder))
    yield lambda name: importlib.import_module(f"sbp.{name}")
    sys.path.remove(str(folder))
    for name in [name for name in sys.modules if name.partition(".")[0] == "sbp"]:
        del sys.modules[name]


def camel(name):
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


def to_official(official, value):
    """Convert one of our values to an object of the official code."""
    if isinstance(value, tuple):
        return [to_official(official, item) for item in value] if value else None
    if type(value) not in LAYOUTS:
        return list(value) if isinstance(value, bytes) else value
    name = type(value).__name__
    result = getattr(official(name), f"{name}T")()
    for item in LAYOUTS[type(value)]:
        assert hasattr(result, camel(item.name))
        setattr(result, camel(item.name), to_official(official, getattr(value, item.name)))
    return result


def from_official(kind, value):
    """Convert what the official code read to one of our values."""
    if isinstance(kind, Table):
        table = getattr(headers, kind.name)
        content = {
            item.name: from_official(item.kind, getattr(value, camel(item.name)))
            for item in (LAYOUTS[table] if value is not None else ())
        }
        return None if value is None else table(**content)
    if isinstance(kind, Vector):
        return tuple(from_official(kind.element, item) for item in (() if value is None else value))
    if isinstance(kind, Bytes):
        return bytes(() if value is None else bytearray(value))
    if isinstance(kind, Text):
        return value.decode() if isinstance(value, bytes) else value
    return value


RANGE = headers.StreamRange(
    stream_id=2**40,
    range_index=3,
    start_offset=100,
    end_offset=-1,
    next_offset=2**62,
    servers=(
        headers.ReplicaServer(headers.RangeServer(1, "127.0.0.1:10911"), is_primary=True),
        headers.ReplicaServer(headers.RangeServer(2, "")),
        headers.ReplicaServer(),
    ),
    ack_count=1,
)


def filled(kind):
    """A value of a kind in which no field has its default."""
    if isinstance(kind, Table):
        table = getattr(headers, kind.name)
        return table(**{item.name: filled(item.kind) for item in LAYOUTS[table]})
    if isinstance(kind, Vector):
        return (filled(kind.element), filled(kind.element))
    if isinstance(kind, Scalar):
        return True if kind.code == "?" else 77
    return b"bytes" if isinstance(kind, Bytes) else "text"


MESSAGES = [
    *(filled(Table(table.__name__)) for table in LAYOUTS),
    headers.SystemErrorResponse(),
    headers.HeartbeatRequest("größe", 3, features=(headers.Feature("x", b"\x00\xff"),)),
    headers.HeartbeatResponse(status=headers.Status(1404, "ok", bytes(range(256)), 12)),
    RANGE,
    headers.StreamRange(),
    headers.AppendRequest(5, (headers.AppendInfo(RANGE, 0, 7), headers.AppendInfo(stream_id=0))),
    headers.FetchRequest(1, 2, (headers.FetchInfo(RANGE, 1, -2, 2**31 - 1), headers.FetchInfo())),
    headers.FetchResponse(0, (headers.FetchResult(1, 2, 3, headers.Status(-1), 4, 5),)),
    headers.ListRangesResponse(list_responses=(headers.ListRangesResult(ranges=(RANGE, RANGE)),)),
    headers.DescribeStreamsRequest(0, (-1, 0, 2**63 - 1), ("a", "", "ü"), all_streams=True),
    headers.EndTxnRequest(
        1, (headers.EndTxnInfo(1, 0, ("t1", "t2"), commit=True), headers.EndTxnInfo())
    ),
    headers.CommitTxnRequest(digest=bytes(32), parts=(headers.TxnPart("t", 1, 2),), commit=True),
    headers.ReportMetricsRequest(disk_in_rate=-(2**63), range_active_cnt=-(2**15)),
]


@needs_flatc
def test_the_official_code_and_ours_read_each_other_s_messages(official):
    for message in MESSAGES:
        name = type(message).__name__
        builder = flatbuffers.Builder(0)
        builder.Finish(to_official(official, message).Pack(builder))
        assert decode_header(type(message), bytes(builder.Output())) == message
        module = official(name)
        table = getattr(module, name).GetRootAs(encode_header(message), 0)
        read = getattr(module, f"{name}T").InitFromObj(table)
        assert from_official(Table(name), read) == message

"""Write vectors/headers.json and vectors/record_batches.json.

python tests/conformance/make_vectors.py

The tests check what this writes with flatc; a vector that was published never changes.
"""

import json
import struct
import sys
from itertools import count
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

from vector_json import to_json

from sbp_core.records.envelope import encode_envelope
from sbp_core.wire import headers
from sbp_core.wire._generated import LAYOUTS, KeyValue, RecordBatchMeta
from sbp_core.wire.flat import Bytes, Scalar, Table, Vector
from sbp_core.wire.headers import REQUEST_TABLES, RESPONSE_TABLES, encode_header
from tests.support.tables import encode_officially

VECTORS = Path(__file__).parent / "vectors"


def filled(kind, numbers):
    """A value of a kind in which every field is set, each number another one."""
    if isinstance(kind, Table):
        table = getattr(headers, kind.name)
        return table(
            **{
                field.name: headers.ClientRole.RANGE_SERVER
                if field.name == "client_role"
                else filled(field.kind, numbers)
                for field in LAYOUTS[table]
            }
        )
    if isinstance(kind, Vector):
        return (filled(kind.element, numbers), filled(kind.element, numbers))
    number = next(numbers)
    if isinstance(kind, Scalar):
        wide = {"q": 2**40, "i": 2**20, "h": 2**8}.get(kind.code, 0)
        return True if kind.code == "?" else wide + number % 100
    return b"\0\xff%d" % number if isinstance(kind, Bytes) else f"text {number} ü"


def header_vectors():
    tables = [*REQUEST_TABLES.items(), *RESPONSE_TABLES.items()]
    named = [(opcode.name, table.__name__) for opcode, table in tables]
    named += [
        ("system error", "SystemErrorResponse"),
        ("PD_NOT_LEADER detail", "PlacementDriverCluster"),
    ]
    for what, name in named:
        kind = "every field set" if name != "SystemErrorResponse" else "a status"
        for suffix, value in (
            (kind, filled(Table(name), count(1))),
            ("nothing set", getattr(headers, name)()),
        ):
            yield {
                "name": f"{what}, {name}, {suffix}",
                "table": name,
                "value": to_json(value),
                "hex": encode_officially(LAYOUTS, value).hex(),
                "hex_written": encode_header(value).hex(),
            }


INVALID_HEADERS = [
    ("nothing at all", "FetchRequest", "", "not a valid table"),
    ("a root offset of zero", "FetchRequest", "00000000", "points outside"),
    ("a root offset past the end", "FetchRequest", "08000000ffffffff", "points outside"),
    ("a vtable before the header", "FetchRequest", "04000000ffffff7f", "vtable outside"),
    ("a vtable past the end", "FetchRequest", "0400000000000080", "vtable"),
    ("a vtable of odd size", "FetchRequest", "080000000500040004000000", "vtable of impossible"),
    ("a table past the end", "FetchRequest", "080000000400ffff04000000", "table of impossible"),
    (
        "a field past its table",
        "FetchRequest",
        "0c0000000600080008000000060000000700000000000000",
        "outside its table",
    ),
    (
        "a vector past the end",
        "DescribeStreamsRequest",
        "0c0000000800080000000400080000000400000000000010",
        "passes the end",
    ),
    (
        "a string that is not UTF-8",
        "IdAllocationRequest",
        "0c00000008000800000004000800000004000000" + "01000000ff000000",
        "not a valid table",
    ),
    (
        "a string past the end",
        "IdAllocationRequest",
        "0c00000008000800000004000800000004000000" + "ff000000ff000000",
        "passes the end",
    ),
]


def batch_vectors():
    one = {"stream_id": 0, "record_count": 1, "base_timestamp_ms": 0, "encoding": "rows"}
    other = {
        "stream_id": 2**40,
        "record_count": 1_000_000,
        "base_timestamp_ms": 1_700_000_000_123,
        "encoding": "",
    }
    for name, batches in (
        ("no body", [({**one, "base_offset": 0}, b"")]),
        ("one record", [({**one, "base_offset": 7}, b"body")]),
        ("the most records", [({**other, "base_offset": 2**62}, bytes(range(256)))]),
        (
            "back to back",
            [
                ({**one, "base_offset": 0}, b"first"),
                ({**other, "base_offset": 1}, b""),
                ({**one, "base_offset": 1_000_001}, b"last"),
            ],
        ),
    ):
        official = [official_batch(body, **fields) for fields, body in batches]
        written = [encode_envelope([body], **fields) for fields, body in batches]
        yield {
            "name": name,
            "batches": [{**fields, "body": body.hex()} for fields, body in batches],
            "hex": b"".join(official).hex(),
            "hex_written": b"".join(written).hex(),
        }


def official_batch(body, *, stream_id, record_count, base_timestamp_ms, encoding, base_offset=0):
    """A batch whose metadata FlatBuffers' own library writes."""
    properties = (KeyValue("encoding", encoding), KeyValue("body_bytes", str(len(body))))
    meta = RecordBatchMeta(
        stream_id=stream_id,
        last_offset_delta=record_count,
        base_timestamp=base_timestamp_ms,
        properties=properties,
    )
    data = encode_officially(LAYOUTS, meta)
    data += bytes(-(13 + len(data)) % 8)
    return struct.pack(">Bqi", 0x22, base_offset, len(data)) + data + body


def invalid_batches():
    """Batches with one thing wrong."""
    valid = official_batch(
        b"body", stream_id=1, record_count=2, base_timestamp_ms=3, encoding="rows"
    )
    meta_end = len(valid) - len(b"body")
    announced = valid.rindex(b"\x01\0\0\x004\0") + 4

    def changed(position, data):
        return valid[:position] + data + valid[position + len(data) :]

    for name, data, message in (
        ("another magic", changed(0, b"\x21"), "magic 0x21"),
        ("no metadata", changed(9, bytes(4)), "announces 0 bytes"),
        ("metadata of negative length", changed(9, b"\xff" * 4), "announces -1 bytes"),
        ("metadata longer than the batch", changed(9, b"\0\0\1\0"), "announces 256 bytes"),
        ("metadata that are no table", changed(13, b"\xff" * 4), "metadata of the record batch"),
        ("a body longer than the batch", changed(announced, b"9"), "announces a body of '9'"),
        ("a body whose length is no number", changed(announced, b"x"), "announces a body of 'x'"),
        ("cut off in the fixed part", valid[:12], "cut off"),
        ("cut off in the metadata", valid[: meta_end - 1], "bytes of metadata"),
        ("cut off in the body", valid[:-1], "announces a body"),
    ):
        yield {"name": name, "hex": data.hex(), "message": message}


def write(name, valid, invalid):
    text = json.dumps({"valid": list(valid), "invalid": list(invalid)}, indent=1)
    (VECTORS / name).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    keys = ("name", "table", "hex", "message")
    write(
        "headers.json",
        header_vectors(),
        [dict(zip(keys, vector, strict=True)) for vector in INVALID_HEADERS],
    )
    write("record_batches.json", batch_vectors(), invalid_batches())

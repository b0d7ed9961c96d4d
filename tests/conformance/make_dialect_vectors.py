"""Write vectors/elasticstream-*.json: frames as servers and clients of those months send them.

python tests/conformance/make_dialect_vectors.py

flatc lays the tables out, by the elasticstream-*.fbs of the same name; nothing of this project's
codec is used. A vector that was published never changes.
"""

import json
import struct
import subprocess
import tempfile
import zlib
from pathlib import Path

HERE = Path(__file__).parent
APRIL, JULY = "elasticstream-2023-04", "elasticstream-2023-07"

REQUEST, ANSWER, SYSTEM_ERROR = 0x00, 0x03, 0x07
OK = {"code": 1200, "message": "OK"}
TIME_MS = 1_682_000_000_000
DRIVER = {"server_id": 0, "advertise_addr": "127.0.0.1:10911"}


def laid_out(table, value, month=APRIL):
    """The bytes of a table."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "value.json").write_text(json.dumps(value), "utf-8")
        root = ["--root-type", f"sbp.{table}"]
        words = ["flatc", "--binary", "-o", folder, *root, HERE / f"{month}.fbs", "value.json"]
        subprocess.run(words, check=True, cwd=folder)
        return Path(folder, "value.bin").read_bytes()


def batch(base_offset, bodies, *, delta, seconds=False):
    """A record sequence in its envelope. Writers disagree on `delta`, and on the unit of time."""
    meta = laid_out(
        "RecordBatchMeta",
        {
            "stream_id": 7,
            "last_offset_delta": delta,
            "base_timestamp": TIME_MS // 1000 if seconds else TIME_MS,
        },
    )
    data = struct.pack(">bqi", 0x22, base_offset, len(meta)) + meta
    for index, body in enumerate(bodies):
        record = laid_out("RecordMeta", {"offset_delta": index, "timestamp_delta": index})
        data += struct.pack(">ii", len(record), len(body)) + record + body
    return data


def frame(opcode, flags, call_id, header, payload):
    length = 16 + len(header) + len(payload)
    prefix = struct.pack(">IBHBI", length, 23, opcode, flags, call_id)
    checksum = struct.pack(">I", zlib.crc32(payload))
    return prefix + b"\1" + len(header).to_bytes(3, "big") + header + payload + checksum


def vector(name, opcode, flags, call_id, table, value, batches=(), month=APRIL):
    """A frame, and what it means; `batches` are (base offset, bodies, bytes)."""
    header = b"" if table is None else laid_out(table, value, month)
    payload = b"".join(data for _, _, data in batches)
    return {
        "name": name,
        "opcode": opcode,
        "flags": flags,
        "call_id": call_id,
        "table": table,
        "value": value,
        "batches": [
            {"base_offset": base_offset, "bodies": [body.hex() for body in bodies]}
            for base_offset, bodies, _ in batches
        ],
        "hex": frame(opcode, flags, call_id, header, payload).hex(),
    }


def written(base_offset, *bodies, **options):
    return base_offset, bodies, batch(base_offset, bodies, **options)


def piece(index, start, end, *, next_offset=None):
    placed = {"stream_id": 7, "range_index": index, "end_offset": end}
    placed |= {"start_offset": start} if start else {}
    placed |= {"next_offset": next_offset} if next_offset else {}
    return placed | {"servers": [{"server": DRIVER, "is_primary": True}]}


def answer(results_field, *results):
    return {results_field: list(results), "status": OK}


def connection_vectors():
    yield vector(
        "HEARTBEAT request of a client",
        *(0x0003, REQUEST, 3, "HeartbeatRequest"),
        {"client_id": "c1", "client_role": "CLIENT"},
    )
    beat = {"client_id": "ds", "client_role": "RANGE_SERVER", "range_server": DRIVER}
    yield vector("HEARTBEAT of a server", 0x0003, REQUEST, 1, "HeartbeatRequest", beat)
    yield vector("HEARTBEAT answer", 0x0003, ANSWER, 1, "HeartbeatResponse", beat | {"status": OK})
    yield vector("GOAWAY, and its answer", 0x0002, ANSWER, 9, None, None)
    yield vector(
        "a system error",
        *(0x4001, SYSTEM_ERROR, 5, "SystemErrorResponse"),
        {"status": {"code": 1499, "message": "unknown operation"}},
    )


def placement_driver_vectors():
    asked = {"timeout_ms": 1000}
    yield vector(
        "ALLOCATE_ID answer", 0x0004, ANSWER, 2, "IdAllocationResponse", {"id": 2, "status": OK}
    )
    by_stream, by_server = {"stream_id": 7}, {"range_server": DRIVER}
    yield vector(
        "LIST_RANGES request",
        *(0x2001, REQUEST, 4, "ListRangesRequest"),
        asked | {"range_owners": [by_stream, by_server]},
    )
    listed = answer(
        "list_responses",
        {"range_owner": by_stream, "ranges": [piece(0, 0, 5), piece(1, 5, -1)], "status": OK},
        {"range_owner": {"stream_id": 99}, "status": OK},
    )
    yield vector(
        "LIST_RANGES answer, of a stream and of an unknown one",
        *(0x2001, ANSWER, 4, "ListRangesResponse"),
        listed,
    )
    stream = {"stream_id": 7, "replica_nums": 1, "retention_period_ms": 86_400_000}
    created = answer(
        "create_responses", {"stream": stream, "stream_range": piece(0, 0, -1), "status": OK}
    )
    yield vector("CREATE_STREAMS answer", 0x3001, ANSWER, 5, "CreateStreamsResponse", created)
    yield vector(
        "DESCRIBE_STREAMS request",
        *(0x3004, REQUEST, 6, "DescribeStreamsRequest"),
        asked | {"stream_ids": [99, 7]},
    )
    yield vector(
        "DESCRIBE_STREAMS answer without the unknown one",
        *(0x3004, ANSWER, 6, "DescribeStreamsResponse"),
        answer("describe_responses", {"stream": stream, "status": OK}),
    )
    yield vector(
        "SEAL_RANGE answer of a placement driver: the new range",
        *(0x2002, ANSWER, 7, "SealRangesResponse"),
        answer("seal_responses", {"stream_range": piece(1, 5, -1), "status": OK}),
    )
    node = {"name": "pd-0", "advertise_addr": "127.0.0.1:12378", "is_leader": True}
    yield vector(
        "DESCRIBE_PD_CLUSTER answer",
        *(0x4002, ANSWER, 8, "DescribePlacementDriverClusterResponse"),
        {"status": OK, "cluster": {"nodes": [node]}},
    )
    cluster = laid_out("PlacementDriverCluster", {"nodes": [node]})
    elsewhere = {"code": 1503, "message": "not leader", "detail": list(cluster)}
    yield vector(
        "LIST_RANGES answer of a placement driver that does not lead",
        *(0x2001, ANSWER, 9, "ListRangesResponse"),
        {"status": elsewhere},
    )


def range_server_vectors():
    one = written(0, b"first", b"second", b"", delta=3, seconds=True)
    two = written(3, b'"', b"\x22" * 40, delta=1)
    target = {"stream_id": 7, "end_offset": -1, "range_index": 0}
    infos = [
        {"stream_range": target, "batch_length": len(one[2])},
        {"stream_range": target, "request_index": 1, "batch_length": len(two[2])},
    ]
    yield vector(
        "APPEND request of two record sequences",
        *(0x1001, REQUEST, 10, "AppendRequest"),
        {"timeout_ms": 1000, "append_requests": infos},
        [one, two],
    )
    seconds = TIME_MS // 1000
    applied = {"stream_id": 7, "stream_append_time_ms": seconds, "status": OK}
    yield vector(
        "APPEND answer: every index is 0, times are in seconds",
        *(0x1001, ANSWER, 10, "AppendResponse"),
        answer("append_responses", applied, applied | {"base_offset": 3}),
    )
    yield vector(
        "FETCH request",
        *(0x1002, REQUEST, 11, "FetchRequest"),
        {
            "max_wait_ms": 1000,
            "min_bytes": 1,
            "fetch_requests": [
                {"stream_range": target, "batch_max_bytes": 1 << 20},
                {"stream_range": target, "request_index": 1, "fetch_offset": 4},
            ],
        },
    )
    found = {"stream_id": 7, "status": OK}
    yield vector(
        "FETCH answer: every index is 0, batches are counted",
        *(0x1002, ANSWER, 11, "FetchResponse"),
        answer("fetch_responses", found | {"batch_count": 2}, found | {"batch_count": 1}),
        [one, two, two],
    )
    nothing = {"stream_id": 0, "status": {"code": 1204, "message": "no new record"}}
    unknown = {"stream_id": 0, "status": {"code": 1462, "message": "range not found"}}
    yield vector(
        "FETCH answer without records",
        *(0x1002, ANSWER, 12, "FetchResponse"),
        answer("fetch_responses", nothing, unknown),
    )
    yield vector(
        "DESCRIBE_RANGES request",
        *(0x2004, REQUEST, 13, "DescribeRangesRequest"),
        {"timeout_ms": 1000, "ranges": [{"stream_id": 7, "range_index": 1}]},
    )
    described = {"stream_id": 7, "stream_range": piece(1, 5, -1, next_offset=12), "status": OK}
    yield vector(
        "DESCRIBE_RANGES answer",
        *(0x2004, ANSWER, 13, "DescribeRangesResponse"),
        answer("describe_responses", described),
    )
    yield vector(
        "SEAL_RANGE answer of a range server: the sealed range",
        *(0x2002, ANSWER, 14, "SealRangesResponse"),
        answer("seal_responses", {"stream_range": piece(1, 5, 12, next_offset=12), "status": OK}),
    )


def later_vectors():
    """Vectors of April 2023 that were added later: observed behaviour of servers."""
    yield vector("LIST_RANGES request of none", 0x2001, REQUEST, 15, "ListRangesRequest", {})
    yield vector(
        "LIST_RANGES answer of none", 0x2001, ANSWER, 15, "ListRangesResponse", {"status": OK}
    )
    unknown = {"status": {"code": 1500, "message": "stream not found"}}
    yield vector(
        "DESCRIBE_STREAMS answer to ids of which one is unknown",
        *(0x3004, ANSWER, 16, "DescribeStreamsResponse"),
        unknown,
    )
    other = piece(3, 9, -1) | {"stream_id": 6}
    yield vector(
        "SEAL_RANGE answer in the order of completion",
        *(0x2002, ANSWER, 17, "SealRangesResponse"),
        answer(
            "seal_responses",
            {"stream_range": other, "status": OK},
            {"status": {"code": 1510, "message": "range not found"}},
            {"stream_range": piece(1, 5, -1), "status": OK},
        ),
    )


def july_vectors():
    """Vectors of July 2023: the answers that distinguish that protocol from the batched one."""
    answers = {
        "LIST_RANGES answer of none": (0x2001, "ListRangeResponse", {"ranges": []}),
        "LIST_RANGES answer of none, throttled": (
            *(0x2001, "ListRangeResponse"),
            {"throttle_time_ms": 5, "ranges": []},
        ),
        "ALLOCATE_ID answer": (0x0004, "IdAllocationResponse", {"id": 3}),
        "ALLOCATE_ID answer, the first": (0x0004, "IdAllocationResponse", {}),
    }
    for name, (opcode, table, value) in answers.items():
        yield vector(name, opcode, ANSWER, 2, table, {"status": OK} | value, month=JULY)
    refused = {"status": {"code": 1503, "message": "not leader"}, "ranges": []}
    name = "LIST_RANGES answer of a server that does not lead"
    yield vector(name, 0x2001, ANSWER, 2, "ListRangeResponse", refused, month=JULY)


def write(month, *vectors):
    path = HERE / "vectors" / f"{month}.json"
    path.write_text(json.dumps({"valid": vectors}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    old = [*connection_vectors(), *placement_driver_vectors(), *range_server_vectors()]
    write(APRIL, *old, *later_vectors())
    write(JULY, *july_vectors())

"""The targets: for each, valid inputs, and a check that any bytes must pass.

A check raises nothing for any bytes: the documented errors are caught in it, and what it
asserts holds for every input that is accepted.
"""

from __future__ import annotations

import json
import logging
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import pyarrow as pa
from fuzz_columns import check_columns, check_schema, columns_corpus, schema_corpus
from fuzz_entries import check_entries, entries_corpus
from fuzz_features import check_features, features_corpus
from fuzz_kafka import check_kafka, kafka_corpus
from fuzz_tls import check_tls, tls_corpus

from sbp_core import limits
from sbp_core.errors import FrameError, HeaderError, LogError, RecordBatchError, SbpError
from sbp_core.log.bodies import read_bodies
from sbp_core.log.durable_log import Log
from sbp_core.log.entry import Commit, Entry, Location, encode_entry
from sbp_core.log.states.range_states import LoggedRange, RangeStates
from sbp_core.log.states.staged_states import Staging, commit_entry, drop_entry, staged_entry
from sbp_core.log.states.state_snapshot import encode_snapshot
from sbp_core.records import (
    ROWS_SCHEMA,
    Envelope,
    decode_batch,
    decode_batches,
    decode_envelope,
    encode_rows,
    peek_batch,
    split_envelopes,
    write_base_offset,
)
from sbp_core.segment_format import (
    ENTRY_HEADER_BYTES,
    ENTRY_PREFIX_BYTES,
    SEGMENT_HEADER_BYTES,
    EntryKind,
    SegmentHeader,
    encode_segment_header,
    segment_path,
)
from sbp_core.session.connection import Connection
from sbp_core.session.states import (
    CallFailed,
    ConnectionBroken,
    RequestReceived,
    RequestRefused,
    ResponseReceived,
)
from sbp_core.wire._generated import LAYOUTS as WIRE_LAYOUTS
from sbp_core.wire._generated import WRITERS
from sbp_core.wire.checksum import crc32c
from sbp_core.wire.flat import Bytes, Scalar, Schema, Table, Text, Vector
from sbp_core.wire.frame import Frame, FrameDecoder, encode_frame
from sbp_core.wire.headers import REQUEST_TABLES, RESPONSE_TABLES, decode_header, encode_header
from sbp_core.wire.opcodes import Flag, Opcode
from tests.support.disk import FaultyDisk, Inode
from tests.support.log import open_log

logging.getLogger("sbp_core").addHandler(logging.NullHandler())


@dataclass(frozen=True, slots=True)
class Target:
    """`corpus` makes valid inputs; `check` raises when bytes do what they must not."""

    corpus: Callable[[], list[bytes]]
    check: Callable[[bytes], None]


# Frames: any cutting of the bytes gives the same frames and the same error.


def frame_corpus() -> list[bytes]:
    rng = Random(1)
    single = [
        b"".join(encode_frame(opcode, flags, call_id, rng.randbytes(20), [rng.randbytes(size)]))
        for opcode, flags, call_id, size in (
            (Opcode.PING, 0, 1, 0),
            (Opcode.APPEND, 0, 2, 300),
            (Opcode.FETCH, Flag.RESPONSE | Flag.END, 3, 20_000),
            (0x7777, 0, 4, 10),
        )
    ]
    foreign = bytearray(single[0])
    foreign[4] = 0
    return [*single, b"".join(single), bytes(foreign) * 3 + single[1]]


def check_frames(data: bytes) -> None:
    whole = _frames(data, [len(data)])
    rng = Random(crc32(data))
    sizes = [rng.choice((1, 3, 16, 100, 5000)) for _ in range(50)]
    assert _frames(data, sizes) == whole, "frames depend on how the bytes were cut"


def _frames(data: bytes, sizes: list[int]) -> tuple[list[Frame], str]:
    decoder = FrameDecoder()
    frames: list[Frame] = []
    position = 0
    try:
        for size in [*sizes, len(data)]:
            decoder.receive_data(data[position : position + size])
            position += size
            frames += decoder.frames()
    except FrameError as error:
        return frames, str(error)
    assert decoder.is_mid_frame or len(frames) + decoder.discarded_count >= decoder.frame_count
    return frames, ""


# Headers: the first byte chooses the table; what is accepted survives another round.

_TABLES = list(WIRE_LAYOUTS)
_TYPES = {table.__name__: table for table in _TABLES}
_LAYOUTS = WIRE_LAYOUTS
_SCHEMA = Schema(_LAYOUTS, WRITERS)
_ROUND_TRIP_BYTES_MAX = 4096
_VECTORS = Path(__file__).parents[1] / "conformance" / "vectors" / "headers.json"


def header_corpus() -> list[bytes]:
    """Tables as this project writes them, and as FlatBuffers' own libraries do."""
    indexes = {table.__name__: index for index, table in enumerate(_TABLES)}
    vectors = json.loads(_VECTORS.read_text(encoding="utf-8"))["valid"]
    return [
        bytes([index]) + _SCHEMA.encode(_filled(table, depth=3))
        for index, table in enumerate(_TABLES)
    ] + [bytes([indexes[each["table"]]]) + bytes.fromhex(each["hex"]) for each in vectors]


def check_header(data: bytes) -> None:
    if not data:
        return
    table = _TABLES[data[0] % len(_TABLES)]
    try:
        value = _SCHEMA.decode(table, data[1:])
    except HeaderError:
        return
    if len(data) > _ROUND_TRIP_BYTES_MAX:
        return
    try:
        encoded = _SCHEMA.encode(value)
    except HeaderError:
        return  # one string that is referred to very often
    assert _SCHEMA.decode(table, encoded) == value, "another round gives another value"


def _filled(table: type, *, depth: int) -> Any:
    """A value of a table with something in every field."""
    values = {field.name: _content(field.kind, depth) for field in _LAYOUTS[table]}
    assert set(table.__struct_fields__) == set(values)
    return table(**values)


def _content(kind: Any, depth: int) -> Any:
    match kind:
        case Scalar("?"):
            return True
        case Scalar():
            return 77
        case Text():
            return "häder"
        case Bytes():
            return b"bytes"
        case Table(name):
            return _filled(_TYPES[name], depth=depth - 1) if depth else None
        case Vector(element):
            item = _content(element, depth)
            return () if item is None else (item, item)
    raise AssertionError(kind)


# Record batches.


def envelope_corpus() -> list[bytes]:
    small = rows_corpus()[0]
    return [small, small * 3, small[: len(small) // 2], bytes(1) + small]


def check_envelope(data: bytes) -> None:
    for read in (decode_envelope, peek_batch):
        try:
            envelope = read(data)
        except RecordBatchError:
            continue
        assert len(envelope.body) < envelope.length_bytes <= len(data)
        assert 1 <= envelope.record_count <= limits.BATCH_RECORDS_MAX
    with suppress(RecordBatchError):
        assert sum(envelope.length_bytes for envelope in split_envelopes(data)) == len(data)
    copied = bytearray(data)
    try:
        write_base_offset(copied, 5)
    except RecordBatchError:
        assert copied == data, "refused, but written"


def rows_corpus() -> list[bytes]:
    rows = [
        {"key": None, "value": b"v" * 20, "headers": [("h", b"x")], "timestamp": 10**15},
        {"key": b"k", "value": None, "headers": None, "timestamp": None},
        {"key": b"", "value": b"", "headers": [], "timestamp": 0},
    ]
    return [
        encode_rows(
            pa.RecordBatch.from_pylist(rows * count, schema=ROWS_SCHEMA),
            stream_id=1,
            timestamp_ms=5,
            compression=compression,
        )
        for count in (1, 60)
        for compression in ("none", "lz4", "zstd")
    ]


def check_rows(data: bytes) -> None:
    try:
        envelope = decode_envelope(data)
        _check_joined(envelope)
        batch = decode_batch(envelope)
    except RecordBatchError:
        return
    assert batch.schema.equals(ROWS_SCHEMA)
    plain = batch.set_column(3, "timestamp", batch.column(3).view(pa.int64()))
    if batch.nbytes <= limits.MIB:
        assert len(plain.to_pylist()) == batch.num_rows
        plain.take(pa.array([batch.num_rows - 1])).serialize()


@cache
def _sound_envelope() -> Envelope:
    return decode_envelope(rows_corpus()[0])


def _check_joined(envelope: Envelope) -> None:
    """Beside sound batches, a batch is read as it is alone, or refused."""
    sound = _sound_envelope()
    try:
        alone = decode_batch(envelope)
    except RecordBatchError:
        alone = None
    try:
        (*_, joined) = decode_batches([sound, envelope], rows_enough=10**6, bytes_enough=10**9)
    except RecordBatchError:
        joined = None
    assert (alone is None) == (joined is None)
    if alone is not None and joined is not None:
        assert joined.slice(joined.num_rows - alone.num_rows).equals(alone)


# A conversation: both ends on one connection, every request answered, every answer decoded.

_OUR_CALLS = (Opcode.APPEND, Opcode.FETCH, Opcode.PING)


def session_corpus() -> list[bytes]:
    requests = [
        _frame(opcode, 0, index + 1, encode_header(_filled(table, depth=2)))
        for index, (opcode, table) in enumerate(REQUEST_TABLES.items())
    ]
    answers = [
        _frame(opcode, flags, call_id, _answer_header(opcode))
        for call_id, opcode in enumerate(_OUR_CALLS, 1)
        for flags in (Flag.RESPONSE, Flag.RESPONSE | Flag.END)
    ]
    goaway = _frame(Opcode.GOAWAY, 0, 0)
    farewell = b"".join(Connection().send_farewell(FrameError("over")))
    return [
        *requests,
        *answers,
        b"".join(answers),
        b"".join(requests),
        answers[0] + goaway + requests[0] + b"".join(answers[1:]),
        requests[0] * 2,
        answers[1] + farewell,
    ]


def check_session(data: bytes) -> None:
    connection = Connection()
    waiting = {connection.start_call(opcode)[0] for opcode in _OUR_CALLS}
    rng = Random(crc32(data))
    position = 0
    is_broken = False
    while position < len(data):
        size = rng.choice((7, 100, 5000))
        connection.decoder.receive_data(data[position : position + size])
        position += size
        for event in connection.events():
            assert not is_broken, "an event after the end"
            is_broken = isinstance(event, ConnectionBroken)
            _react(connection, event, waiting, rng)
        assert len(connection._requests) <= limits.CALLS_IN_FLIGHT_MAX
    for failed in connection.close():
        waiting.remove(failed.call_id)
    assert not waiting, "a call was neither answered nor failed"
    assert list(connection.events()) == []


def _react(connection: Connection, event: object, waiting: set[int], rng: Random) -> None:
    match event:
        case RequestReceived(frame):
            table = REQUEST_TABLES.get(Opcode(frame.opcode))
            if table is not None:
                _decode(table, frame.header)
            if rng.random() < 0.8:
                connection.send_response(frame, b"", [b"done"], is_end=rng.random() < 0.8)
        case RequestRefused(frame, error):
            assert isinstance(error, SbpError)
            connection.send_system_error(frame, error)
        case ResponseReceived(call_id, frame):
            assert call_id in waiting, "an answer to a call that is over"
            table = RESPONSE_TABLES.get(Opcode(frame.opcode))
            if table is not None:
                _decode(table, frame.header)
            if frame.is_end:
                waiting.remove(call_id)
        case CallFailed(call_id, _):
            waiting.remove(call_id)
        case _:
            pass


def _decode(table: type, header: Any) -> None:
    try:
        decode_header(table, header)
    except HeaderError:
        return


def _answer_header(opcode: Opcode) -> bytes:
    table = RESPONSE_TABLES.get(opcode)
    return b"" if table is None else encode_header(_filled(table, depth=2))


def _frame(opcode: int, flags: int, call_id: int, header: bytes = b"") -> bytes:
    return b"".join(encode_frame(opcode, flags, call_id, header, [b"payload"]))


# The log: two segments. A byte decides whether checksums are corrected first, four how long the
# first segment is. Recovery accepts its own result, and finds the same.

_LOG_PREFIX = struct.Struct(">BI")
_ENTRY_PREFIX = struct.Struct(">III")
_DIRECTORY = Path("log")


def log_corpus() -> list[bytes]:
    first = _segment(0, 0, groups=2)
    second = _segment(len(first), 3, groups=3)
    return [
        _LOG_PREFIX.pack(mends, len(first)) + first + second[: len(second) - cut]
        for mends in (0, 1)
        for cut in (0, 10)
    ] + [_LOG_PREFIX.pack(1, 0) + _segment(0, 0, groups=3)]


def check_log(data: bytes) -> None:
    if len(data) < _LOG_PREFIX.size:
        return
    mends, first_bytes = _LOG_PREFIX.unpack_from(data)
    raw = data[_LOG_PREFIX.size :]
    first, rest = raw[:first_bytes], raw[first_bytes:]
    disk = FaultyDisk()
    for base, content in ((0, first), (len(first), rest)):
        if content:
            inode = Inode()
            inode.write(_mended(content, base) if mends % 2 else content, 0)
            inode.sync(may_shrink=True)
            disk.names[segment_path(_DIRECTORY, base)] = inode
    before = {path: bytes(inode.cached) for path, inode in disk.names.items()}
    try:
        log = open_log(disk, _DIRECTORY)
    except LogError:
        after = {path: bytes(inode.cached) for path, inode in disk.names.items()}
        assert after == before, "refused, but changed"
        return
    found = _contents(log)
    disk.kill_process()
    again = open_log(disk, _DIRECTORY)
    assert _contents(again) == found, "another start finds other entries"
    assert again.recovery.torn_tail is None


def _contents(log: Log) -> list[object]:
    """All ranges, and where each of their batches is, or that it is lost; what is staged."""
    found: list[object] = [*log.ranges()]
    for staging in log.staged.stagings():
        found += [staging.txn_id, *log.staged.ends(staging.stream_id)]
        with suppress(LogError):
            bodies = read_bodies(
                (staging.stream_id, staging.range_index), list(log.staged_from(staging, 0))
            )
            found += map(bytes, bodies.data)
    for logged in log.ranges():
        with suppress(LogError):
            for slot in log.batches_from(logged.key, 0):
                found.append((slot.base_offset, slot.location))
                body = read_bodies(logged.key, [slot])
                found.append(bytes(body.data[0]) if body.error is None else None)
    return found


def _segment(base: int, tail: int, *, groups: int) -> bytes:
    """A segment with `groups` groups of a batch each, and a staged one."""
    raw = encode_segment_header(SegmentHeader(base))

    def put(*entries: Entry) -> Location:
        nonlocal raw
        for entry in (Commit(base + len(raw), 1).to_entry(), *entries):
            location = Location(base + len(raw), entry.length)
            raw += b"".join(encode_entry(entry, location.position))
        return location

    states = RangeStates([LoggedRange(1, 0, 0, tail)])
    before = Staging(1, 0, "before", 1)
    before.batches.append(base, 50, 1)
    states.staged.restore(before)
    put(*encode_snapshot(states))
    for group in range(groups):
        batch = Entry(EntryKind.BATCH, 1, 0, tail + group, 1, b"body of a batch")
        put(batch, Entry(EntryKind.RANGE_CREATED, 2, tail + group, 0, 0))
    staging = Staging(1, 0, "now", 1)
    location = put(staged_entry(1, 0, "now", 0, 1, b"body that is staged"))
    staging.batches.append(location.position, location.length, 1)
    put(commit_entry(1, 0, tail + groups, [staging]))
    put(staged_entry(1, 0, "later", 0, 1, b"body that is staged"))
    put(drop_entry(1, 0, ["before"]))
    return raw


def _mended(content: bytes, base: int) -> bytes:
    """`content` with the checksums that each entry should have, as far as lengths allow."""
    mended = bytearray(content)
    position = SEGMENT_HEADER_BYTES
    for length in _entry_lengths(mended):
        seed = struct.pack(">QI", base + position, length)
        fields = mended[position + ENTRY_PREFIX_BYTES : position + ENTRY_HEADER_BYTES]
        body = mended[position + ENTRY_HEADER_BYTES : position + ENTRY_PREFIX_BYTES + length]
        header_crc = crc32c((seed, fields))
        _ENTRY_PREFIX.pack_into(mended, position, length, header_crc, crc32c((body,), header_crc))
        position += ENTRY_PREFIX_BYTES + length
    return bytes(mended)


def _entry_lengths(raw: bytearray) -> Iterator[int]:
    position = SEGMENT_HEADER_BYTES
    while position + ENTRY_HEADER_BYTES <= len(raw):
        (length, *_) = _ENTRY_PREFIX.unpack_from(raw, position)
        if position + ENTRY_PREFIX_BYTES + length > len(raw):
            return
        yield length
        position += ENTRY_PREFIX_BYTES + length


TARGETS = {
    "frames": Target(frame_corpus, check_frames),
    "headers": Target(header_corpus, check_header),
    "envelope": Target(envelope_corpus, check_envelope),
    "rows": Target(rows_corpus, check_rows),
    "columns": Target(columns_corpus, check_columns),
    "schema": Target(schema_corpus, check_schema),
    "session": Target(session_corpus, check_session),
    "features": Target(features_corpus, check_features),
    "tls": Target(tls_corpus, check_tls),
    "kafka": Target(kafka_corpus, check_kafka),
    "log": Target(log_corpus, check_log),
    "entries": Target(entries_corpus, check_entries),
}

"""Batches are read from a file only where they are exactly what the server said."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from msgspec import structs

from sbp_core.client import Batches, FetchItem, ReceivedBatches
from sbp_core.client.io.local_batches import read_piece
from sbp_core.client.io.local_log import LocalLogs, PlacedBatches, read_pieces
from sbp_core.client.programs.fetch_answer import Found, Question, read_answer
from sbp_core.client.programs.program import BatchesElsewhere, Call
from sbp_core.errors import LogCorruptionError, LogError, ProtocolError
from sbp_core.log.disk import OsDisk
from sbp_core.record_sizes import LARGEST
from sbp_core.records import (
    ColumnBounds,
    Selection,
    StreamSchema,
    batch_filter,
    decode_envelope,
    encode_columns,
    order_key,
    write_base_offset,
)
from sbp_core.segment_format import INSTANCE_NAME, SEGMENT_HEADER_BYTES, encode_instance
from sbp_core.wire.frame import Frame
from sbp_core.wire.headers import (
    BatchPlace,
    FetchRequest,
    FetchResponse,
    FetchResult,
    encode_header,
)
from sbp_core.wire.opcodes import Flag, Opcode
from sbp_core.wire.status import SUCCESS
from tests.support.cluster import rows_batch
from tests.support.log import batch, created, open_log

STREAM_ID = 7
IMPOSSIBLE = "the server named places"
ANY_PLACE = BatchPlace(0, 0, 100, 200, 0, 0, 1)


def body(base_offset: int, count: int) -> bytes:
    data = bytearray(rows_batch([b"%d" % at for at in range(count)], STREAM_ID))
    write_base_offset(data, base_offset)
    return bytes(data)


@pytest.fixture
def placed(tmp_path: Path) -> PlacedBatches:
    """Two batches of one stream, of 3 and 2 records, and one of another stream between them."""
    content = encode_instance("thisone", "ours", ["127.0.0.1:1", "0.0.0.0:2"])
    (tmp_path / INSTANCE_NAME).write_bytes(content)
    with open_log(OsDisk(), tmp_path, segment_bytes=1_000_000) as log:
        entries = [
            created(STREAM_ID),
            created(8),
            batch(0, 3, body(0, 3), (STREAM_ID, 0)),
            batch(0, 1, body(0, 1), (8, 0)),
            batch(3, 2, body(3, 2), (STREAM_ID, 0)),
        ]
        _, _, first, _, second = log.append(entries).locations
    places = tuple(
        BatchPlace(0, 0, location.position, location.length, 0, base_offset, count)
        for location, base_offset, count in ((first, 0, 3), (second, 3, 2))
    )
    return PlacedBatches(
        *("a:1", str(tmp_path), "thisone", STREAM_ID, 0, places),
        cluster_id="ours",
        address="127.0.0.1:1",
        folders=(tmp_path.parent.resolve(),),
    )


def read_placed(placed: PlacedBatches) -> bytes:
    return b"".join(piece.payload for piece in read_pieces(placed, 1 << 20))


def open_files() -> set[str]:
    return {str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}


def test_batches_are_read_one_behind_the_other(placed):
    assert read_placed(placed) == body(0, 3) + body(3, 2)
    assert not any(placed.directory in path for path in open_files())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"position": SEGMENT_HEADER_BYTES}, "entry"),
        ({"position": 10**9}, "ends within"),
        ({"length": 10_000_000}, "ends within"),
        ({"prefix_length": 20}, "another entry"),
        ({"base_offset": 4}, "other offsets"),
        ({"record_count": 3}, "another entry"),
        ({"generation": 1}, "rewritten since"),
        ({"segment": 1}, "No such file"),
        ({"position": 0}, IMPOSSIBLE),
        ({"position": -1}, IMPOSSIBLE),
        ({"position": -(2**63)}, IMPOSSIBLE),
        ({"segment": -1}, IMPOSSIBLE),
        ({"length": 0}, IMPOSSIBLE),
        ({"length": -(2**31)}, IMPOSSIBLE),
        ({"length": LARGEST.frame_bytes + 1}, IMPOSSIBLE),
        ({"length": 2**31 - 1, "prefix_length": 2**31 - 138}, IMPOSSIBLE),
        ({"prefix_length": -1}, IMPOSSIBLE),
        ({"prefix_length": 256}, IMPOSSIBLE),
    ],
    ids=str,
)
def test_no_other_batch_is_taken(placed, change, reason):
    first, second = placed.places
    wrong = replace(placed, places=(first, structs.replace(second, **change)))
    with pytest.raises((LogError, FileNotFoundError), match=reason):
        read_placed(wrong)
    assert not any(placed.directory in path for path in open_files())


def test_batches_are_read_piece_by_piece(placed):
    pieces = [(bytes(piece.payload), piece.next_offset) for piece in read_pieces(placed, 1)]
    assert pieces == [(body(0, 3), 3), (body(3, 2), 5)]
    whole = body(0, 3) + body(3, 2)
    (piece,) = read_pieces(placed, len(whole))
    assert (bytes(piece.payload), piece.next_offset) == (whole, 5)


def test_a_reader_that_stops_keeps_no_file_open(placed):
    pieces = read_pieces(placed, 1)
    next(pieces)
    assert any(placed.directory in path for path in open_files())
    pieces.close()
    assert not any(placed.directory in path for path in open_files())


def test_links_are_not_followed(placed, tmp_path):
    (path,) = Path(placed.directory).glob("*.log")
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        read_placed(placed)


def test_no_link_is_followed_on_the_way(placed, tmp_path):
    folder = Path(placed.directory)
    inner = folder / "inner"
    inner.mkdir()
    for path in folder.iterdir():
        if path.is_file():
            path.rename(inner / path.name)
    assert read_placed(replace(placed, directory=str(inner)))
    (tmp_path / "link").symlink_to(folder)
    for directory in (tmp_path / "link", tmp_path / "link" / "inner"):
        with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
            read_placed(replace(placed, directory=str(directory)))


@pytest.mark.parametrize("name", [INSTANCE_NAME, "segment"])
def test_nothing_but_a_regular_file_is_read(placed, name):
    """Opening a FIFO would wait for its other end."""
    folder = Path(placed.directory)
    path = folder / name if name == INSTANCE_NAME else next(iter(folder.glob("*.log")))
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(LogError, match="no regular file"):
        read_placed(placed)
    path.unlink()
    path.mkdir()
    with pytest.raises((LogError, OSError), match=r"no regular file|Is a directory"):
        read_placed(placed)
    assert not any(placed.directory in each for each in open_files())


@pytest.mark.parametrize(
    "content",
    [
        *("thisone", "thisone theirs\n", "thisone \n", "thisone ours", "", "thisone ours\n"),
        *("thisone oursx 127.0.0.1:1\n", "thisone theirs ours 127.0.0.1:1\n"),
    ],
)
def test_a_log_of_another_cluster_or_of_an_earlier_version_is_not_read(placed, content):
    (Path(placed.directory) / INSTANCE_NAME).write_text(content)
    with pytest.raises(LogError, match="another server or cluster"):
        read_placed(placed)


@pytest.mark.parametrize(
    ("address", "is_read"),
    [
        ("127.0.0.1:1", True),
        ("127.0.0.1:2", True),
        ("10.0.0.5:2", True),
        ("10.0.0.5:1", False),
        ("127.0.0.2:1", False),
        ("::1:2", False),
        ("127.0.0.1:3", False),
    ],
)
def test_the_server_must_listen_where_the_client_is_connected(placed, address, is_read):
    there = replace(placed, address=address)
    if is_read:
        assert read_placed(there)
    else:
        with pytest.raises(LogError, match="is not at"):
            read_placed(there)


class Fetching:
    """The logs on this machine, as a client of the cluster `cluster_id` knows them."""

    def __init__(self, folders: tuple[Path, ...] = (), cluster_id: str | None = "ours") -> None:
        self.cluster_id = cluster_id
        self.now = 0.0
        self.fetched: list[FetchItem] = []
        self.logs = LocalLogs(
            *(lambda: self.cluster_id, self._fetch),
            pause_ms=1_000,
            folders=folders,
            clock=lambda: self.now,
        )

    def _fetch(self, item: FetchItem) -> ReceivedBatches:
        self.fetched.append(item)
        assert item.end_offset is not None
        return ReceivedBatches(memoryview(b"fetched"), item.end_offset)

    def maybe_elsewhere(self, endpoint: str, *, is_here: bool = True) -> BatchesElsewhere | None:
        call, elsewhere = self.logs.asking(
            Call(endpoint, Opcode.FETCH, FetchRequest(), 1_000),
            lambda: "127.0.0.1:1" if is_here else None,
        )
        assert isinstance(call.header, FetchRequest)
        assert call.header.takes_places is (elsewhere is not None)
        return elsewhere

    def batches(self, placed: PlacedBatches, *, is_here: bool = True) -> Batches:
        self.now += 10
        (found,) = read_answer(
            answer(placed),
            {0: Question(STREAM_ID, 0, 0)},
            self.maybe_elsewhere(placed.endpoint, is_here=is_here),
        ).values()
        assert isinstance(found, Found)
        return found.batches

    def read(self, placed: PlacedBatches, *, is_here: bool = True) -> bytes:
        pieces = self.batches(placed, is_here=is_here).pieces()
        return b"".join(piece.payload for piece in pieces)


def test_logs_are_read_of_servers_here_in_folders_that_the_client_names(placed, caplog):
    caplog.set_level(logging.DEBUG)
    local = Fetching(placed.folders)
    whole = body(0, 3) + body(3, 2)
    assert local.read(placed, is_here=False) == b"fetched"
    for cluster_id in (None, "", "theirs"):
        local.cluster_id = cluster_id
        assert local.read(placed) == b"fetched"
    local.cluster_id = "ours"
    assert local.read(placed) == whole
    assert local.read(replace(placed, directory="/elsewhere")) == b"fetched"
    assert local.read(replace(placed, endpoint="c:1")) == whole
    assert local.read(replace(placed, endpoint="b:1")) == whole
    assert [(item.fetch_offset, item.end_offset) for item in local.fetched] == 5 * [(0, 5)]
    assert {record.levelno for record in caplog.records} == {logging.DEBUG}
    assert len(caplog.records) == 5


def test_batches_behind_one_that_cannot_be_read_are_fetched(placed):
    local = Fetching(placed.folders)
    first, second = placed.places
    wrong = replace(placed, places=(first, structs.replace(second, length=second.length + 1)))
    found = local.batches(wrong).pieces(1)
    pieces = [(bytes(piece.payload), piece.next_offset) for piece in found]
    assert pieces == [(body(0, 3), 3), (b"fetched", 5)]
    assert local.fetched == [FetchItem(STREAM_ID, 3, 5, 1)]


def test_no_batch_of_another_stream_is_taken(placed):
    with pytest.raises(LogCorruptionError, match="another entry"):
        read_placed(replace(placed, stream_id=8))
    with pytest.raises(LogCorruptionError, match="another entry"):
        read_placed(replace(placed, range_index=1))


@pytest.mark.parametrize("directory", [".", "", "/\0"])
def test_a_folder_that_cannot_be_is_not_opened(placed, directory, monkeypatch):
    monkeypatch.chdir(placed.directory)
    with pytest.raises(LogError, match="outside of the folders"):
        read_placed(replace(placed, directory=directory))
    with pytest.raises(OSError, match="too long"):
        read_placed(replace(placed, directory=placed.directory + "/" + 5_000 * "x"))


def test_no_batch_of_another_log_is_taken(placed):
    with pytest.raises(LogError, match="log of another server"):
        read_placed(replace(placed, instance="another"))
    (Path(placed.directory) / INSTANCE_NAME).write_text("")
    with pytest.raises(LogError, match="as the instance of its log"):
        read_placed(replace(placed, instance=""))
    with pytest.raises(FileNotFoundError):
        read_placed(replace(placed, directory=placed.directory + "/elsewhere"))


@pytest.mark.parametrize("at", range(-1, -40, -7))
def test_a_damaged_batch_is_not_taken(placed, at):
    (path,) = Path(placed.directory).glob("*.log")
    data = bytearray(path.read_bytes())
    end = placed.places[1].position + placed.places[1].length
    data[end + at] ^= 0x20
    path.write_bytes(data)
    with pytest.raises(LogCorruptionError):
        read_placed(placed)


def test_a_batch_whose_count_rotted_is_not_skipped(tmp_path):
    """Its head would say where the next batch begins, and no checksum covers it."""
    schema = StreamSchema.of(pa.schema([("n", pa.int64())]))
    rows = pa.record_batch([range(1_000)], schema=schema.arrow)
    stored = encode_columns(rows, schema, stream_id=7, timestamp_ms=5, stats_columns=["n"])
    with open_log(OsDisk(), tmp_path, segment_bytes=1_000_000) as log:
        entries = [created(STREAM_ID), batch(0, 1_000, stored, (STREAM_ID, 0))]
        _, location = log.append(entries).locations
    above = ColumnBounds("n", order_key(1_000, pa.int64()), None, takes_null=False)
    nothing = Selection(filters=(batch_filter(schema.fingerprint, [above]),))
    place = BatchPlace(0, 0, location.position, location.length, 0, 0, 1_000)
    (path,) = tmp_path.glob("*.log")
    with path.open("r+b") as file:
        read = partial(read_piece, file.fileno(), (STREAM_ID, 0), [place], nothing)
        assert decode_envelope(read()).is_skipped
        at = path.read_bytes().index((1_000).to_bytes(4, "little"), location.position)
        os.pwrite(file.fileno(), (1_001).to_bytes(4, "little"), at)
        with pytest.raises(LogCorruptionError):
            read()


def test_a_server_whose_files_failed_is_not_asked_for_places_for_a_while(placed):
    local = Fetching()
    assert local.read(replace(placed, instance="another")) == b"fetched"
    for after, is_accepted in ((0, False), (0.999, False), (1, True)):
        local.now = 10 + after
        assert (local.maybe_elsewhere("a:1") is not None) is is_accepted
        assert local.maybe_elsewhere("b:1") is not None
    ping = Call("a:1", Opcode.PING, None, 1_000)
    assert local.logs.asking(ping, lambda: "127.0.0.1:1") == (ping, None)


def answer(placed: PlacedBatches, **changes: object) -> Frame:
    result = FetchResult(STREAM_ID, 0, 2, SUCCESS, 0, 5, placed.places)
    response = FetchResponse(0, (result,), SUCCESS, placed.directory, placed.instance)
    header = encode_header(structs.replace(response, **changes))
    return Frame(Opcode.FETCH, Flag.RESPONSE | Flag.END, 1, header, b"x")


def test_places_that_were_not_asked_for_are_no_answer(placed):
    with pytest.raises(ProtocolError, match="unasked"):
        read_answer(answer(placed), {0: Question(STREAM_ID, 0, 0)})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"log_directory": None}, "without the log"),
        ({"log_instance": None}, "without the log"),
        (
            {"fetch_responses": (FetchResult(STREAM_ID, 0, 2, SUCCESS, 1, 5, (ANY_PLACE,)),)},
            "without the log",
        ),
        (
            {"fetch_responses": (FetchResult(STREAM_ID, 0, 2, SUCCESS, 0, 0, (ANY_PLACE,)),)},
            "goes on at 0",
        ),
    ],
)
def test_places_without_their_log_or_without_records_are_no_answer(placed, changes, reason):
    accepted = Fetching().maybe_elsewhere("a:1")
    with pytest.raises(ProtocolError, match=reason):
        read_answer(answer(placed, **changes), {0: Question(STREAM_ID, 0)}, accepted)

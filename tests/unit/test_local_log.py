"""Batches are read from a file only where they are exactly what the server said."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path

import pytest
from client_answers import item
from core_cluster import rows_batch
from log_files import batch, created, open_log
from msgspec import structs

from sbp_core import limits
from sbp_core.client.fetches.fetch_answer import Question, read_answer
from sbp_core.client.fetches.places import LocalReads, PlacedBatches, Whereabouts
from sbp_core.client.io.local_log import read_pieces, read_placed
from sbp_core.errors import LogCorruptionError, LogError, ProtocolError
from sbp_core.log.disk import OsDisk
from sbp_core.records import write_base_offset
from sbp_core.segment_format import INSTANCE_NAME, SEGMENT_HEADER_BYTES, encode_instance
from sbp_core.wire.frame import Frame
from sbp_core.wire.headers import BatchPlace, FetchResponse, FetchResult, encode_header
from sbp_core.wire.opcodes import Flag, Opcode
from sbp_core.wire.status import SUCCESS

STREAM_ID = 7
IMPOSSIBLE = "the server told of (more )?places"
ANY_PLACE = BatchPlace(0, 0, 100, 200, 0, 0, 1)


def body(base_offset: int, count: int) -> bytes:
    octets = bytearray(rows_batch([b"%d" % at for at in range(count)], STREAM_ID))
    write_base_offset(octets, base_offset)
    return bytes(octets)


@pytest.fixture
def placed(tmp_path: Path) -> PlacedBatches:
    """Two batches of one stream, of 3 and 2 records, and one of another stream between them."""
    (tmp_path / INSTANCE_NAME).write_bytes(encode_instance("thisone", "ours"))
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
    return PlacedBatches("a:1", str(tmp_path), "thisone", STREAM_ID, 0, places, "ours")


def open_files() -> set[str]:
    return {str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}


def test_batches_are_read_one_behind_the_other(placed):
    assert bytes(read_placed(placed)) == body(0, 3) + body(3, 2)
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
        ({"generation": 1}, "rewritten meanwhile"),
        ({"segment": 1}, "No such file"),
        ({"position": 0}, IMPOSSIBLE),
        ({"position": -1}, IMPOSSIBLE),
        ({"position": -(2**63)}, IMPOSSIBLE),
        ({"segment": -1}, IMPOSSIBLE),
        ({"length": 0}, IMPOSSIBLE),
        ({"length": -(2**31)}, IMPOSSIBLE),
        ({"length": limits.ENTRY_BYTES_MAX + 1}, IMPOSSIBLE),
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
    pieces = [(bytes(piece.payload), piece.end_offset) for piece in read_pieces(placed, 1)]
    assert pieces == [(body(0, 3), 3), (body(3, 2), 5)]
    (piece,) = read_pieces(placed, placed.length_bytes)
    assert (bytes(piece.payload), piece.end_offset) == (body(0, 3) + body(3, 2), 5)
    assert placed.up_to(1).places == placed.places[:1]
    assert placed.up_to(placed.length_bytes) == placed


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
    "content", ["thisone", "thisone theirs\n", "thisone \n", "thisone ours", ""]
)
def test_a_log_of_another_cluster_or_of_an_earlier_version_is_not_read(placed, content):
    (Path(placed.directory) / INSTANCE_NAME).write_text(content)
    with pytest.raises(LogError, match="another server or cluster"):
        read_placed(placed)


HERE = Whereabouts(is_on_this_machine=True, maybe_cluster_id="ours")


def test_places_are_admitted_of_servers_here_in_the_folder_that_they_named_first(placed, caplog):
    caplog.set_level(logging.DEBUG)
    local = LocalReads(1_000)
    told = replace(placed, cluster_id="")
    assert local.maybe_admitted(told, replace(HERE, is_on_this_machine=False)) is None
    assert local.maybe_admitted(told, replace(HERE, maybe_cluster_id=None)) is None
    assert local.maybe_admitted(told, replace(HERE, maybe_cluster_id="")) is None
    assert local.maybe_admitted(told, HERE) == placed
    assert local.maybe_admitted(replace(told, directory="/elsewhere"), HERE) is None
    assert local.maybe_admitted(told, HERE) == placed
    other = replace(told, endpoint="b:1", directory="/elsewhere")
    admitted = local.maybe_admitted(other, HERE)
    assert admitted is not None
    assert {record.levelno for record in caplog.records} == {logging.DEBUG}
    assert len(caplog.records) == 4


def test_no_batch_of_another_stream_is_taken(placed):
    with pytest.raises(LogCorruptionError, match="another entry"):
        read_placed(replace(placed, stream_id=8))
    with pytest.raises(LogCorruptionError, match="another entry"):
        read_placed(replace(placed, range_index=1))


@pytest.mark.parametrize("directory", [".", "", "/\0"])
def test_a_folder_that_cannot_be_is_not_opened(placed, directory, monkeypatch):
    monkeypatch.chdir(placed.directory)
    with pytest.raises(LogError, match="told of a log in"):
        read_placed(replace(placed, directory=directory))
    with pytest.raises(OSError, match="too long"):
        read_placed(replace(placed, directory="/" + 5_000 * "x"))


def test_no_batch_of_another_log_is_taken(placed):
    with pytest.raises(LogError, match="log of another server"):
        read_placed(replace(placed, instance="another"))
    (Path(placed.directory) / INSTANCE_NAME).write_text("")
    with pytest.raises(LogError, match="as what its log is"):
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


def test_a_server_whose_files_failed_is_left_alone_for_a_while():
    local = LocalReads(pause_ms=1_000)
    assert local.takes_places("a:1", 0)
    local.on_failure("a:1", 500)
    assert [local.takes_places("a:1", now) for now in (500, 1_499, 1_500)] == [False, False, True]
    assert local.takes_places("b:1", 500)


def answer(placed: PlacedBatches, **changes: object) -> Frame:
    result = FetchResult(STREAM_ID, 0, 2, SUCCESS, 0, 5, placed.places)
    response = FetchResponse(0, (result,), SUCCESS, placed.directory, placed.instance)
    header = encode_header(structs.replace(response, **changes))
    return Frame(Opcode.FETCH, Flag.RESPONSE | Flag.END, 1, header, b"x")


def test_places_are_an_answer_for_who_takes_them(placed):
    question = Question(STREAM_ID, item(STREAM_ID).fetch_offset, 0)
    (found,) = read_answer(answer(placed), {0: question}, maybe_places_of="a:1").values()
    assert (found.placed, bytes(found.payload)) == (replace(placed, cluster_id=""), b"")
    assert found.next_offset == 5
    with pytest.raises(ProtocolError, match="unasked"):
        read_answer(answer(placed), {0: question})


@pytest.mark.parametrize(
    "changes",
    [
        {"log_directory": None},
        {"log_instance": None},
        {"fetch_responses": (FetchResult(STREAM_ID, 0, 2, SUCCESS, 1, 5, (ANY_PLACE,)),)},
    ],
)
def test_places_without_their_log_are_no_answer(placed, changes):
    with pytest.raises(ProtocolError, match="without the log"):
        read_answer(answer(placed, **changes), {0: Question(STREAM_ID, 0)}, maybe_places_of="a:1")

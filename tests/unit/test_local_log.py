"""Batches are read from a file only where they are exactly what the server said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from client_answers import item
from core_cluster import rows_batch
from log_files import batch, created, open_log
from msgspec import structs

from sbp_core.client.fetch_answer import Question, read_answer
from sbp_core.client.local_log import LocalReads, PlacedBatches, read_placed
from sbp_core.errors import LogCorruptionError, LogError, ProtocolError
from sbp_core.log.disk import OsDisk
from sbp_core.log.files import INSTANCE_NAME
from sbp_core.records import write_base_offset
from sbp_core.wire.frame import Frame
from sbp_core.wire.headers import BatchPlace, FetchResponse, FetchResult, encode_header
from sbp_core.wire.opcodes import Flag, Opcode
from sbp_core.wire.status import SUCCESS

STREAM_ID = 7


def body(base_offset: int, count: int) -> bytes:
    octets = bytearray(rows_batch([b"%d" % at for at in range(count)], STREAM_ID))
    write_base_offset(octets, base_offset)
    return bytes(octets)


@pytest.fixture
def placed(tmp_path: Path) -> PlacedBatches:
    """Two batches of one stream, of 3 and 2 records, and one of another stream between them."""
    (tmp_path / INSTANCE_NAME).write_text("this one")
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
    return PlacedBatches(str(tmp_path), "this one", STREAM_ID, places)


def open_files() -> set[str]:
    return {str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}


def test_batches_are_read_one_behind_the_other(placed):
    assert bytes(read_placed(placed)) == body(0, 3) + body(3, 2)
    assert not any(placed.directory in path for path in open_files())


@pytest.mark.parametrize(
    ("change", "error_type"),
    [
        ({"position": 0}, LogCorruptionError),
        ({"position": -1}, LogCorruptionError),
        ({"position": 10**9}, LogCorruptionError),
        ({"length": 0}, LogError),
        ({"length": -(2**31)}, LogError),
        ({"length": 10_000_000}, LogCorruptionError),
        ({"length": 2**31 - 1}, LogError),
        ({"prefix_length": -1}, LogError),
        ({"prefix_length": 2**31 - 1}, LogError),
        ({"prefix_length": 20}, LogCorruptionError),
        ({"base_offset": 4}, LogCorruptionError),
        ({"record_count": 3}, LogCorruptionError),
        ({"generation": 1}, LogError),
        ({"segment": 1}, FileNotFoundError),
        ({"segment": -1}, FileNotFoundError),
    ],
    ids=str,
)
def test_no_other_batch_is_taken(placed, change, error_type):
    first, second = placed.places
    wrong = replace(placed, places=(first, structs.replace(second, **change)))
    with pytest.raises(error_type):
        read_placed(wrong)
    assert not any(placed.directory in path for path in open_files())


def test_no_batch_of_another_stream_is_taken(placed):
    with pytest.raises(LogCorruptionError, match="another entry"):
        read_placed(replace(placed, stream_id=8))


@pytest.mark.parametrize("directory", ["log", "", "/\0", "/" + 5_000 * "x"])
def test_a_folder_that_cannot_be_is_not_opened(placed, directory):
    with pytest.raises((LogError, OSError)):
        read_placed(replace(placed, directory=directory))


def test_no_batch_of_another_log_is_taken(placed):
    with pytest.raises(LogError, match="log of another server"):
        read_placed(replace(placed, instance="another one"))
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
    return Frame(Opcode.FETCH, Flag.RESPONSE | Flag.END, 1, header, b"")


def test_places_are_an_answer_for_who_takes_them(placed):
    question = Question(STREAM_ID, item(STREAM_ID).fetch_offset)
    (found,) = read_answer(answer(placed), {0: question}, takes_places=True).values()
    assert (found.placed, bytes(found.payload), found.next_offset) == (placed, b"", 5)
    with pytest.raises(ProtocolError, match="unasked"):
        read_answer(answer(placed), {0: question})


@pytest.mark.parametrize(
    "changes",
    [
        {"log_directory": None},
        {"log_instance": None},
    ],
)
def test_places_without_their_log_are_no_answer(placed, changes):
    with pytest.raises(ProtocolError, match="without the log"):
        read_answer(answer(placed, **changes), {0: Question(STREAM_ID, 0)}, takes_places=True)

"""Every frame of the other dialect: read in all sorts of pieces, and written so that it is read.

Frames of the protocol after it can be distinguished from these.
"""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from vector_json import feedings, from_json, to_json

from sbp_core.client.programs.fetch_answer import Question, read_answer
from sbp_core.errors import HeaderError, UnsupportedError
from sbp_core.records import decode_batch, split_envelopes
from sbp_core.wire.dialect import check_is_batched
from sbp_core.wire.frame import FrameDecoder, encode_frame
from sbp_core.wire.headers import IdAllocationResponse, decode_header, encode_header
from sbp_core.wire.opcodes import Flag

pytestmark = pytest.mark.dialect

HERE = Path(__file__).parent
SCHEMA = HERE / "elasticstream-2023-04.fbs"
VALID = json.loads((HERE / "vectors" / "elasticstream-2023-04.json").read_text("utf-8"))["valid"]
JULY = json.loads((HERE / "vectors" / "elasticstream-2023-07.json").read_text("utf-8"))["valid"]
BY_NAME = {"ids": lambda vector: vector["name"]}
WITH_TABLE = [vector for vector in VALID if vector["table"]]


def frames_of(pieces):
    decoder, found = FrameDecoder(), []
    for piece in pieces:
        decoder.receive_data(piece)
        found += list(decoder.frames())
    return found


def check(vector, frame):
    assert (frame.opcode, frame.flags, frame.call_id) == (
        vector["opcode"],
        vector["flags"],
        vector["call_id"],
    )
    if vector["table"] is None:
        assert not frame.header
    else:
        expected = from_json(vector["table"], vector["value"])
        assert to_json(expected) == vector["value"]
        for data in (frame.header, bytes(frame.header) + bytes(8)):
            assert decode_header(type(expected), data) == expected
    found = [
        {
            "base_offset": envelope.base_offset,
            "bodies": [body.hex() for body in decode_batch(envelope).column("value").to_pylist()],
        }
        for envelope in split_envelopes(frame.payload)
    ]
    assert found == vector["batches"]


@pytest.mark.parametrize("vector", VALID, **BY_NAME)
def test_frames_are_read_in_whatever_pieces_they_come(vector):
    for pieces in feedings(bytes.fromhex(vector["hex"])):
        (frame,) = frames_of(pieces)
        check(vector, frame)


@pytest.mark.parametrize("vector", VALID, **BY_NAME)
def test_trailing_bytes_wait_for_the_rest(vector):
    data = bytes.fromhex(vector["hex"])
    frames = frames_of([data + data[:7], data[7:]])
    assert len(frames) == 2
    for frame in frames:
        check(vector, frame)


@pytest.mark.parametrize("vector", WITH_TABLE, **BY_NAME)
def test_the_tables_of_the_dialect_read_our_headers(vector, tmp_path):
    assert shutil.which("flatc"), "flatc is missing: install it, e.g. flatbuffers-compiler"
    value = from_json(vector["table"], vector["value"])
    (tmp_path / "ours.bin").write_bytes(encode_header(value))
    options = ["--json", "--strict-json", "--natural-utf8", "--raw-binary"]
    root = ["--root-type", f"sbp.{vector['table']}"]
    words = ["flatc", "-o", tmp_path, *options, *root, SCHEMA, "--", "ours.bin"]
    subprocess.run(words, check=True, cwd=tmp_path, capture_output=True)
    assert json.loads((tmp_path / "ours.json").read_text("utf-8")) == vector["value"]


def payload_of(frame):
    """The bytes of a frame's payload, by the framing alone."""
    data = bytes.fromhex(frame["hex"])
    return data[16 + int.from_bytes(data[13:16], "big") : -4]


@pytest.mark.parametrize("vector", VALID, **BY_NAME)
def test_frames_are_written_to_the_same_bytes(vector):
    data = bytes.fromhex(vector["hex"])
    header = data[16 : 16 + int.from_bytes(data[13:16], "big")]
    written = encode_frame(
        vector["opcode"], Flag(vector["flags"]), vector["call_id"], header, [payload_of(vector)]
    )
    assert b"".join(written) == data


def answered(name, *questions):
    (vector,) = (each for each in VALID if each["name"].startswith(name))
    (frame,) = frames_of([bytes.fromhex(vector["hex"])])
    return read_answer(frame, dict(enumerate(questions)))


def test_batches_that_are_counted_are_cut_and_the_next_offset_is_behind_the_last():
    first, second = answered("FETCH answer: every", Question(7, 0), Question(7, 4)).values()
    assert [each.base_offset for each in split_envelopes(first.batches.payload)] == [0, 3]
    assert [each.base_offset for each in split_envelopes(second.batches.payload)] == [3]
    assert (first.batches.next_offset, second.batches.next_offset) == (5, 5)


def test_nothing_new_is_an_answer_and_another_code_an_error():
    nothing, unknown = answered("FETCH answer without", Question(7, 4), Question(8, 0)).values()
    assert (bytes(nothing.batches.payload), nothing.batches.next_offset, nothing.is_hasty) == (
        b"",
        4,
        True,
    )
    assert unknown.code == 1462


def lists(vectors):
    return [each for each in vectors if (each["opcode"], each["flags"]) == (0x2001, 0x03)]


@pytest.mark.parametrize("vector", lists(VALID), **BY_NAME)
def test_an_answer_of_batched_tables_passes_the_probe(vector):
    (frame,) = frames_of([bytes.fromhex(vector["hex"])])
    check_is_batched(frame.header)


@pytest.mark.parametrize("vector", lists(JULY), **BY_NAME)
def test_an_answer_of_the_later_tables_does_not_pass_the_probe(vector):
    (frame,) = frames_of([bytes.fromhex(vector["hex"])])
    with pytest.raises(UnsupportedError, match="May 2023 or later"):
        check_is_batched(frame.header)


def test_an_id_of_the_later_tables_has_no_status_here():
    """The status is where the later tables have the id."""
    answers = [each for each in JULY if each["name"].startswith("ALLOCATE_ID")]
    third, first = [frames_of([bytes.fromhex(each["hex"])])[0].header for each in answers]
    with pytest.raises(HeaderError):
        decode_header(IdAllocationResponse, third)
    misread = decode_header(IdAllocationResponse, first)
    assert misread.id > 0
    assert misread.status is None

"""Every record batch vector: alone, one after the other, and in any pieces of its frame."""

import json
from pathlib import Path

import pytest
from vector_json import feedings

from sbp_core.errors import RecordBatchError
from sbp_core.records.envelope import encode_envelope, peek_batch
from sbp_core.records.splitting import split_envelopes
from sbp_core.wire.frame import FrameDecoder, encode_frame
from sbp_core.wire.opcodes import Flag, Opcode

VECTORS = json.loads((Path(__file__).parent / "vectors" / "record_batches.json").read_text("utf-8"))
VALID, INVALID = VECTORS["valid"], VECTORS["invalid"]
BY_NAME = {"ids": lambda vector: vector["name"]}


def as_json(envelope):
    names = ("stream_id", "record_count", "base_timestamp_ms", "encoding", "base_offset")
    return {
        **{name: getattr(envelope, name) for name in names},
        "body": bytes(envelope.body).hex(),
    }


@pytest.mark.parametrize("layout", ["hex", "hex_written"])
@pytest.mark.parametrize("vector", VALID, **BY_NAME)
def test_batches_are_read_in_whatever_pieces_their_frame_comes(vector, layout):
    framed = b"".join(
        encode_frame(Opcode.APPEND, Flag.REQUEST, 1, b"", [bytes.fromhex(vector[layout])])
    )
    for pieces in feedings(framed):
        decoder, frames = FrameDecoder(), []
        for piece in pieces:
            decoder.receive_data(piece)
            frames += list(decoder.frames())
        (frame,) = frames
        found = list(split_envelopes(frame.payload))
        assert [as_json(each) for each in found] == vector["batches"]


@pytest.mark.parametrize("vector", VALID, **BY_NAME)
def test_batches_are_written_to_the_same_bytes(vector):
    written = b"".join(
        encode_envelope([bytes.fromhex(each.pop("body"))], **each)
        for each in (dict(each) for each in vector["batches"])
    )
    assert written.hex() == vector["hex_written"]


@pytest.mark.parametrize("vector", VALID, **BY_NAME)
def test_batches_with_bytes_after_them_are_refused_after_the_last_whole_one(vector):
    data = bytes.fromhex(vector["hex"])
    found = []
    with pytest.raises(RecordBatchError, match="cut off"):
        found += split_envelopes(data + data[:12])
    with pytest.raises(RecordBatchError):
        peek_batch(data + b"\x22")


@pytest.mark.parametrize("vector", VALID[:3], **BY_NAME)
def test_every_batch_that_is_cut_off_is_refused(vector):
    data = bytes.fromhex(vector["hex"])
    for length in range(len(data)):
        with pytest.raises(RecordBatchError):
            peek_batch(data[:length])


@pytest.mark.parametrize("vector", INVALID, **BY_NAME)
def test_invalid_batches_are_refused(vector):
    data = bytes.fromhex(vector["hex"])
    with pytest.raises(RecordBatchError, match=vector["message"]):
        peek_batch(data)
    with pytest.raises(RecordBatchError, match=vector["message"]):
        list(split_envelopes(data))

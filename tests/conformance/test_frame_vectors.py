"""Every frame vector, fed whole, byte by byte, in random splits and with trailing bytes."""

import json
import random
from pathlib import Path

import pytest

from sbp_core.errors import FrameError
from sbp_core.wire.frame import Frame, FrameDecoder, encode_frame

VECTORS = json.loads((Path(__file__).parent / "vectors" / "frames.json").read_text())
BY_NAME = {"ids": lambda vector: vector["name"]}


def feed(decoder: FrameDecoder, pieces: list[bytes]) -> list[Frame]:
    frames = []
    for piece in pieces:
        decoder.receive_data(piece)
        frames += list(decoder.frames())
    return frames


def splits(data: bytes) -> list[list[bytes]]:
    rng = random.Random(len(data))
    shapes = [[data], [data[i : i + 1] for i in range(len(data))]]
    for _ in range(10):
        cuts = sorted(rng.sample(range(1, len(data)), 3))
        shapes.append([data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)])
    return shapes


def as_json(frame: Frame) -> dict[str, object]:
    return {
        "opcode": frame.opcode,
        "flags": frame.flags,
        "call_id": frame.call_id,
        "header": bytes(frame.header).hex(),
        "payload": bytes(frame.payload).hex(),
    }


@pytest.mark.parametrize("vector", VECTORS["valid"], **BY_NAME)
def test_valid_frames_decode_in_every_split(vector):
    data = bytes.fromhex(vector["hex"])
    for pieces in splits(data):
        decoder = FrameDecoder()
        assert [as_json(frame) for frame in feed(decoder, pieces)] == vector["frames"]
        assert list(decoder.frames()) == []


@pytest.mark.parametrize("vector", VECTORS["valid"], **BY_NAME)
def test_trailing_bytes_wait_for_the_rest(vector):
    data = bytes.fromhex(vector["hex"])
    decoder = FrameDecoder()
    frames = feed(decoder, [data + data[:7]])
    frames += feed(decoder, [data[7:]])
    assert [as_json(frame) for frame in frames] == vector["frames"] * 2


def is_as_we_write_it(vector):
    frame = vector["frames"][0]
    size = 20 + len(frame["header"]) // 2 + len(frame["payload"]) // 2
    is_whole = len(vector["frames"]) == 1 and len(vector["hex"]) == 2 * size
    return is_whole and (frame["payload"] or vector["hex"].endswith("00000000"))


AS_WRITTEN = [vector for vector in VECTORS["valid"] if is_as_we_write_it(vector)]


@pytest.mark.parametrize("vector", AS_WRITTEN, **BY_NAME)
def test_frames_encode_to_the_same_bytes(vector):
    (frame,) = vector["frames"]
    encoded = encode_frame(
        frame["opcode"],
        frame["flags"],
        frame["call_id"],
        bytes.fromhex(frame["header"]),
        [bytes.fromhex(frame["payload"])],
    )
    assert b"".join(encoded).hex() == vector["hex"]


@pytest.mark.parametrize("vector", VECTORS["invalid"], **BY_NAME)
def test_invalid_frames_are_refused_at_the_earliest_byte(vector):
    data = bytes.fromhex(vector["hex"])
    decoder = FrameDecoder()
    for count in range(vector["refused_after"] - 1):
        assert feed(decoder, [data[count : count + 1]]) == []
    with pytest.raises(FrameError, match=vector["message"]):
        feed(decoder, [data[vector["refused_after"] - 1 : vector["refused_after"]]])
    with pytest.raises(FrameError, match=vector["message"]):
        feed(decoder, [b"\0" * 32])

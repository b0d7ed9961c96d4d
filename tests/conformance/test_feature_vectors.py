"""The vectors of features: frames with a header checksum in every split, compressed payloads."""

import json
from pathlib import Path

import pytest
from test_frame_vectors import BY_NAME, as_json, feed, splits

from sbp_core.errors import FrameError
from sbp_core.wire.frame import FrameDecoder, HeaderChecksum, decompress

VECTORS = json.loads((Path(__file__).parent / "vectors" / "features.json").read_text())
CHECKED = VECTORS["header_checksum"]
COMPRESSED = VECTORS["compression"]


def agreed_decoder() -> FrameDecoder:
    decoder = FrameDecoder()
    decoder.header_checksum = HeaderChecksum.ACCEPTED
    return decoder


@pytest.mark.parametrize("vector", CHECKED["valid"], **BY_NAME)
def test_checked_frames_decode_in_every_split(vector):
    for pieces in splits(bytes.fromhex(vector["hex"])):
        decoder = agreed_decoder()
        assert [as_json(frame) for frame in feed(decoder, pieces)] == vector["frames"]
        assert not decoder.is_mid_frame


@pytest.mark.parametrize("vector", CHECKED["invalid"], **BY_NAME)
def test_false_checked_frames_are_refused_at_the_earliest_byte(vector):
    data = bytes.fromhex(vector["hex"])
    last = vector["refused_after"]
    decoder = agreed_decoder()
    feed(decoder, [data[index : index + 1] for index in range(last - 1)])
    with pytest.raises(FrameError, match=vector["message"]):
        feed(decoder, [data[last - 1 : last]])


@pytest.mark.parametrize("vector", COMPRESSED["valid"], **BY_NAME)
def test_compressed_payloads_are_read(vector):
    assert decompress(bytes.fromhex(vector["hex"])).hex() == vector["payload"]


@pytest.mark.parametrize("vector", COMPRESSED["invalid"], **BY_NAME)
def test_false_compressed_payloads_are_refused(vector):
    with pytest.raises(FrameError, match=vector["message"]):
        decompress(bytes.fromhex(vector["hex"]))

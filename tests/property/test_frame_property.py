"""Frames survive any cutting of the byte stream, and random bytes only ever raise FrameError."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbp_core import limits
from sbp_core.errors import FrameError
from sbp_core.wire.checksum import crc32, crc32_joined
from sbp_core.wire.frame import FrameDecoder, encode_frame
from sbp_core.wire.opcodes import KNOWN_OPCODES, Opcode

FRAMES = st.tuples(
    st.sampled_from(sorted(KNOWN_OPCODES)),
    st.integers(0, 7),
    st.integers(0, limits.CALL_ID_MAX),
    st.binary(max_size=64),
    st.one_of(
        st.binary(max_size=200),
        st.integers(0, 400_000).map(lambda count: bytes(range(256)) * (count // 256)),
    ),
)


@settings(deadline=None)
@given(st.lists(FRAMES, max_size=6), st.randoms(use_true_random=False))
def test_any_cutting_gives_the_same_frames(frames, rng):
    data = b"".join(
        b"".join(encode_frame(opcode, flags, call_id, header, [payload]))
        for opcode, flags, call_id, header, payload in frames
    )
    decoder = FrameDecoder()
    received = []
    position = 0
    while position < len(data):
        count = rng.choice([1, 3, 16, 1000, 70_000, 1_000_000])
        decoder.receive_data(data[position : position + count])
        position += count
        received += [
            (f.opcode, f.flags, f.call_id, bytes(f.header), bytes(f.payload))
            for f in decoder.frames()
        ]
    assert received == frames


@given(st.binary(max_size=64), st.lists(st.binary(max_size=100), max_size=5), st.booleans())
def test_a_checksum_that_is_known_makes_the_same_frame(header, payload, covers_header):
    known = 0
    for part in payload:
        known = crc32_joined(known, crc32([part]), len(part))
    assert encode_frame(
        Opcode.FETCH, 0, 1, header, payload, payload_crc32=known, covers_header=covers_header
    ) == encode_frame(Opcode.FETCH, 0, 1, header, payload, covers_header=covers_header)


@given(st.lists(st.binary(max_size=100), max_size=20))
def test_random_bytes_raise_nothing_but_frame_error(pieces):
    decoder = FrameDecoder()
    try:
        for piece in pieces:
            decoder.receive_data(piece)
            list(decoder.frames())
    except FrameError:
        with pytest.raises(FrameError):
            list(decoder.frames())


def test_a_peer_without_our_magic_is_given_up():
    decoder = FrameDecoder()
    foreign = bytes.fromhex("0000001099000100000000010100000000000000")
    for _ in range(limits.BAD_MAGIC_FRAMES_MAX):
        decoder.receive_data(foreign)
        assert list(decoder.frames()) == []
    decoder.receive_data(foreign)
    with pytest.raises(FrameError, match="does not speak SBP"):
        list(decoder.frames())


def test_announced_lengths_alone_cost_no_memory():
    announcement = limits.FRAME_BYTES_MAX.to_bytes(4, "big") + b"\x17\x10\x01\0\0\0\0\1\1\0\0\0"
    before_bytes = resident_bytes()
    decoders = [FrameDecoder() for _ in range(100)]
    for decoder in decoders:
        decoder.receive_data(announcement + b"x" * limits.RECEIVE_BUFFER_BYTES)
        assert list(decoder.frames()) == []
        decoder.receive_data(b"x")
    assert resident_bytes() - before_bytes < 4 * limits.FRAME_BYTES_MAX


def resident_bytes():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_a_frame_over_the_limit_is_not_encoded():
    with pytest.raises(FrameError, match="passes the limit"):
        encode_frame(0x1001, 0, 1, b"", [bytes(limits.FRAME_BYTES_MAX)])


def test_the_buffer_grows_with_what_came_not_with_what_was_announced():
    decoder = FrameDecoder()
    (prefix, *_) = encode_frame(0x1001, 0, 1, b"", [bytes(1 << 20) * 15])
    decoder.receive_data(prefix + bytes(limits.RECEIVE_BUFFER_BYTES))
    assert list(decoder.frames()) == []
    came = len(prefix) + limits.RECEIVE_BUFFER_BYTES
    assert len(decoder.get_buffer()) <= limits.RECEIVE_GROWTH_FACTOR * came


@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 400_000))
def test_large_payloads_are_aligned(header_bytes, small_bytes, piece_bytes):
    """Those for which the buffer grows: columns in them are used in place."""
    small = b"".join(encode_frame(0x1001, 0, 1, b"", [bytes(small_bytes)]))
    content = bytes(range(256)) * 1024
    large = b"".join(encode_frame(0x1001, 0, 1, bytes(header_bytes), [content]))
    data = memoryview((small + large) * 3)
    decoder = FrameDecoder()
    payloads = []
    while data:
        with decoder.get_buffer() as target:
            count = min(len(data), len(target), max(piece_bytes, len(data) // 50))
            target[:count] = data[:count]
        decoder.buffer_updated(count)
        data = data[count:]
        payloads += [each.payload for each in decoder.frames() if len(each.payload) > small_bytes]
    assert payloads == [content] * 3
    assert [np.frombuffer(each, np.uint8).ctypes.data % 8 for each in payloads] == [0] * 3


def test_a_large_header_leaves_no_large_buffer():
    decoder = FrameDecoder()
    decoder.receive_data(b"".join(encode_frame(0x1001, 0, 1, bytes(limits.HEADER_BYTES_MAX))))
    (frame,) = decoder.frames()
    assert len(frame.header) == limits.HEADER_BYTES_MAX
    assert len(decoder.get_buffer()) == limits.RECEIVE_BUFFER_BYTES


def test_frames_are_counted_and_one_that_began_shows():
    decoder = FrameDecoder()
    ping = b"".join(encode_frame(0x0001, 0, 1))
    foreign = ping[:4] + b"\x99" + ping[5:]
    for data, expected in (
        (b"", (0, False)),
        (ping, (1, False)),
        (ping[:3], (1, True)),
        (ping[3:] + ping[:10], (2, True)),
        (ping[10:], (3, False)),
        (foreign[:-1], (3, True)),
        (foreign[-1:], (3, False)),
    ):
        decoder.receive_data(data)
        list(decoder.frames())
        assert (decoder.frame_count, decoder.is_mid_frame) == expected


@given(st.integers(1, 200_000), st.integers(1, 70_000))
def test_a_frame_that_is_incomplete_is_known_to_be(payload_bytes, piece_bytes):
    """Once its prefix was looked at: until then there may be something to do with it."""
    data = b"".join(encode_frame(Opcode.FETCH, 0, 1, b"header", [bytes(payload_bytes)]))
    decoder = FrameDecoder()
    for at in range(0, len(data), piece_bytes):
        assert list(decoder.frames()) == []
        decoder.receive_data(data[at : at + piece_bytes])
        if decoder.is_mid_body:
            assert decoder.missing_bytes == len(data) - at - piece_bytes > 0
    assert not decoder.is_mid_body
    assert len(list(decoder.frames())) == 1
    assert not decoder.is_mid_body

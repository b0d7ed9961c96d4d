from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sbp_core.errors import LogCorruptionError, LogError
from sbp_core.log.entry import Entry, decode_entry, encode_entry
from sbp_core.segment_format import (
    EntryKind,
    SegmentHeader,
    decode_segment_header,
    encode_segment_header,
)

positions = st.integers(0, 2**64 - 1)
entries = st.builds(
    Entry,
    st.sampled_from(EntryKind),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**32 - 1),
    st.binary(max_size=300),
)


@given(entries, positions, st.binary(max_size=50))
def test_decode_inverts_encode(entry: Entry, position: int, behind: bytes) -> None:
    data = b"".join(encode_entry(entry, position))
    assert len(data) == entry.length
    assert decode_entry(memoryview(data + behind), position) == entry


@given(entries, positions, st.data())
def test_any_change_of_any_byte_is_refused(
    entry: Entry, position: int, data: st.DataObject
) -> None:
    changed = bytearray(b"".join(encode_entry(entry, position)))
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        decode_entry(memoryview(changed), position)
    except LogCorruptionError:
        return
    raise AssertionError("damage was not noticed")


@given(st.binary(max_size=200), positions)
def test_arbitrary_bytes_raise_log_errors_only(data: bytes, position: int) -> None:
    for decode in (
        lambda: decode_entry(memoryview(data), position),
        lambda: decode_segment_header(data, position),
    ):
        try:
            decode()
        except LogError:
            continue
        raise AssertionError("noise was taken for the real thing")


@given(positions, positions, st.integers(0, 2**32 - 1), positions)
def test_segment_headers_fit_their_own_name_only(
    base: int, other: int, generation: int, end: int
) -> None:
    header = SegmentHeader(base, generation, end)
    assert decode_segment_header(encode_segment_header(header), base) == header
    if other != base:
        try:
            decode_segment_header(encode_segment_header(header), other)
        except LogError:
            return
        raise AssertionError("a header was taken for that of another segment")

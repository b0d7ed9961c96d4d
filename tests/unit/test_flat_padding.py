"""Bytes of headers that nothing refers to: accepted from peers, up to a limit."""

import pytest

from sbp_core import limits
from sbp_core.errors import HeaderError
from sbp_core.wire._generated import LAYOUTS
from sbp_core.wire.headers import (
    AppendInfo,
    AppendRequest,
    CommitTxnRequest,
    CreateStreamsRequest,
    FetchInfo,
    FetchRequest,
    HeartbeatRequest,
    Stream,
    decode_header,
    decode_measured,
    encode_header,
)
from tests.support.tables import encode_officially

UNUSED = limits.HEADER_UNUSED_BYTES_MAX
LARGE = {
    "items with all fields": FetchRequest(
        fetch_requests=tuple(
            FetchInfo(stream_id=7, request_index=number, fetch_offset=number, batch_max_bytes=9)
            for number in range(20_000)
        )
    ),
    "items without fields": FetchRequest(fetch_requests=(FetchInfo(),) * 20_000),
    "appends": AppendRequest(append_requests=(AppendInfo(request_index=1),) * 20_000),
    "names": CreateStreamsRequest(
        streams=tuple(Stream(name=f"stream-{number}") for number in range(20_000))
    ),
    "a long text": HeartbeatRequest(client_id="x" * limits.STRING_BYTES_MAX),
    "bytes": CommitTxnRequest(digest=bytes(3 << 20)),
}


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("encode", [encode_header, lambda value: encode_officially(LAYOUTS, value)])
def test_messages_of_honest_encoders_are_accepted(name, encode):
    data = encode(LARGE[name])
    assert len(data) > UNUSED
    decoded, size = decode_measured(type(LARGE[name]), data)
    assert decoded == LARGE[name]
    assert size > len(data) // 4


@pytest.mark.parametrize("name", LARGE)
def test_fields_of_a_newer_peer_may_take_as_much_again(name):
    data = encode_header(LARGE[name])
    room = min(2 * len(data), limits.HEADER_BYTES_MAX) - len(data)
    assert decode_header(type(LARGE[name]), data + bytes(room)) == LARGE[name]


def test_padding_is_refused_beyond_that():
    request = FetchRequest(fetch_requests=(FetchInfo(stream_id=1),))
    data = encode_header(request)
    assert decode_header(FetchRequest, data + bytes(UNUSED)) == request
    with pytest.raises(HeaderError, match=r"of which \d+ are in use at most.*without the padding"):
        decode_header(FetchRequest, data + bytes(UNUSED + 1_000))


def test_padding_counts_for_nothing_once_it_is_decoded():
    data = encode_header(FetchRequest(fetch_requests=(FetchInfo(stream_id=1),)))
    _, size = decode_measured(FetchRequest, data + bytes(UNUSED))
    assert size < 10 * limits.HEADER_TABLE_DECODED_BYTES

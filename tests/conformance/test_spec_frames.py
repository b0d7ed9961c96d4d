"""Frames, flags, call ids and what both servers share; bytes made and read by hand.

Tests are named after the sentence of the specification that they check. `Rule` names the line of
docs/reference/protocol.md.
"""

import zlib

import pytest
from spec_target import Wire, append_request, batch, fetch_request, frame

from sbp_core.wire.headers import (
    DescribeStreamsRequest,
    IdAllocationRequest,
    IdAllocationResponse,
    decode_header,
    decode_system_error,
    encode_header,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import is_success

PING, GOAWAY, ALLOCATE_ID = Opcode.PING, Opcode.GOAWAY, Opcode.ALLOCATE_ID
PONG = 0x03
GARBAGE = b"\xff" * 24


@pytest.fixture(params=["placement driver", "range server"])
def endpoint(request, target):
    """Both kinds of servers."""
    if request.param == "placement driver":
        return target.endpoint
    found = []

    async def body(target):
        async with target.streams() as (placed,):
            found.append(placed.server.advertise_addr)

    target.run(body)
    return found[0]


def test_all_frames_begin_with_a_fixed_header_followed_by_an_extended_header_and_payload(endpoint):
    """SPEC "Overview", "The protocol is big-endian". Rule: frame-layout."""
    with Wire(endpoint) as wire:
        pong = wire.ask(frame(PING, 7, b"header", b"payload"))
    assert (pong.magic, pong.opcode, pong.call_id, pong.header_format) == (23, PING, 7, 1)
    assert pong.length == 16 + len(b"header") + len(b"payload")


def test_the_payload_is_followed_by_its_checksum(endpoint):
    """SPEC "Frame Length": the 16 counts four bytes after the payload. Rule: payload-checksum."""
    with Wire(endpoint) as wire:
        assert wire.ask(frame(PING, 1, b"", b"abcdef")).checksum == 0x4B8E39EF
        assert wire.ask(frame(PING, 2, b"header")).checksum == 0
        assert wire.ask(frame(PING, 3, b"", bytes(10**6))).checksum == zlib.crc32(bytes(10**6))


def test_a_payload_that_does_not_match_its_checksum_is_not_used(endpoint):
    """Rule: payload-checksum."""
    damaged = bytearray(frame(PING, 1, b"", b"abcdef"))
    damaged[-1] ^= 1
    with Wire(endpoint) as wire:
        wire.send(bytes(damaged))
        refusal = wire.maybe_read()
        assert refusal is None or refusal.opcode == GOAWAY or refusal.flags & 0x04


def test_implementations_must_discard_any_frame_that_does_not_contain_the_correct_magic(endpoint):
    """SPEC "Magic Code", "MUST discard any frame". Rule: magic."""
    with Wire(endpoint) as wire:
        pong = wire.ask(
            frame(PING, 1, magic=22), frame(PING, 2, b"h", b"p", magic=0), frame(PING, 3)
        )
        assert (pong.opcode, pong.call_id) == (PING, 3)


@pytest.mark.parametrize("opcode", [0x0000, 0x0005, 0x1FFF, 0x7777, 0xFFFF])
def test_implementations_must_ignore_and_discard_any_frame_with_an_unknown_opcode(endpoint, opcode):
    """SPEC "Operation Code", "MUST ignore and discard". Rule: unknown-opcode."""
    with Wire(endpoint) as wire:
        pong = wire.ask(frame(opcode, 1, GARBAGE, b"payload"), frame(PING, 2))
        assert (pong.opcode, pong.call_id) == (PING, 2)


def test_the_response_flag_is_set_and_the_end_flag_on_the_last_frame(endpoint):
    """SPEC "Flags", 0x01 and 0x02. Rule: response-flags."""
    with Wire(endpoint) as wire:
        for call_id in range(1, 4):
            assert wire.ask(frame(PING, call_id)).flags == PONG


def test_a_response_sequence_may_contain_more_frames_and_only_the_last_one_has_the_end_flag(target):
    """SPEC "Flags", "the response sequence continues with more frames". Rule: response-flags."""

    async def body(target):
        async with target.streams() as (placed,), target.pd() as client:
            request = DescribeStreamsRequest(stream_ids=(placed.stream_id,) * 2_500)
            frames = await client.call(Opcode.DESCRIBE_STREAMS, request)
        assert [each.is_end for each in frames] == [False] * (len(frames) - 1) + [True]
        assert all(each.is_response for each in frames)

    target.run(body)


@pytest.mark.parametrize("flags", [0x08, 0x10, 0x80, 0xF8])
def test_the_rest_of_the_flags_are_currently_unused_and_ignored(endpoint, flags):
    """SPEC "Flags", "unused and ignored". Rule: unused-flags."""
    with Wire(endpoint) as wire:
        pong = wire.ask(frame(PING, 9, b"h", flags=flags))
        assert (pong.opcode, pong.call_id, pong.header) == (PING, 9, b"h")


def test_with_the_system_error_flag_the_extended_header_is_a_system_error_response(endpoint):
    """SPEC "Errors that end a connection": a header that does not decode. Rule: system-error."""
    with Wire(endpoint) as wire:
        answer = wire.ask(frame(Opcode.HEARTBEAT, 5, GARBAGE))
        assert (answer.opcode, answer.call_id) == (Opcode.HEARTBEAT, 5)
        assert answer.flags == 0x07
        assert not is_success(decode_system_error(answer.header).status)
        assert wire.ask(frame(PING, 6)).call_id == 6


def test_the_request_and_response_frames_have_matching_stream_ids(target):
    """SPEC "Call ids", "matching stream ids": many open calls at once. Rule: call-id."""
    header = encode_header(IdAllocationRequest(timeout_ms=10_000, host="conformance"))
    call_ids = [0, *range(3, 100), 2**31 - 1]
    with Wire(target.endpoint) as wire:
        wire.send(*(frame(ALLOCATE_ID, call_id, header) for call_id in call_ids))
        answers = [wire.read() for _ in call_ids]
    assert sorted(answer.call_id for answer in answers) == call_ids
    assert {answer.opcode for answer in answers} == {ALLOCATE_ID}


def test_the_client_must_set_this_stream_id_to_a_non_negative_value(endpoint):
    """SPEC "Call ids", "non-negative value": anything else is no call. Rule: call-id."""
    with Wire(endpoint) as wire:
        wire.send(frame(PING, 2**31))
        refusal = wire.maybe_read()
        assert refusal is None or refusal.opcode == GOAWAY or refusal.flags & 0x04


@pytest.mark.parametrize(
    ("header", "payload"), [(b"", b""), (b"\x01\x02", b""), (b"", b"x"), (GARBAGE, bytes(300_000))]
)
def test_receivers_of_a_ping_do_a_pong_with_the_same_extended_headers_and_payload(
    endpoint, header, payload
):
    """SPEC "PING", "with the same extended headers and payload". Rule: ping."""
    with Wire(endpoint) as wire:
        pong = wire.ask(frame(PING, 1, header, payload))
        assert (pong.flags, pong.header, pong.payload) == (PONG, header, payload)


def test_a_frame_is_read_in_whatever_pieces_it_comes(endpoint):
    """SPEC "Overview", a frame base protocol: segments of TCP mean nothing. Rule: frame-layout."""
    data = frame(PING, 1, b"header", b"payload") + frame(PING, 2)
    with Wire(endpoint) as wire:
        for position in range(len(data)):
            wire.send(data[position : position + 1])
        assert [wire.read().call_id, wire.read().call_id] == [1, 2]


def test_goaway_still_finishes_the_processing_of_previously_established_streams(target):
    """SPEC "GOAWAY", "still finishing the processing". Rule: goaway."""

    async def body(target):
        async with target.streams() as (placed,):
            with Wire(placed.server.advertise_addr) as wire:
                wait = fetch_request((placed, 0), max_wait_ms=30_000)
                wire.send(frame(Opcode.FETCH, 1, encode_header(wait)), frame(PING, 2))
                assert wire.read().call_id == 2
                wire.send(frame(GOAWAY, 0))
                with Wire(placed.server.advertise_addr) as other:
                    header, payload = append_request((placed, batch()))
                    other.ask(frame(Opcode.APPEND, 1, encode_header(header), payload[0]))
                answer = wire.read()
                while answer.opcode == GOAWAY:
                    answer = wire.read()
                assert (answer.opcode, answer.call_id) == (Opcode.FETCH, 1)
                assert len(answer.payload) == len(payload[0])

    target.run(body)


def test_after_goaway_an_endpoint_stops_accepting_new_streams(target):
    """SPEC "GOAWAY", "gracefully stop accepting new streams". Rule: goaway."""
    header = encode_header(IdAllocationRequest(timeout_ms=1000, host="conformance"))
    with Wire(target.endpoint) as wire:
        wire.send(frame(GOAWAY, 0), frame(ALLOCATE_ID, 1, header))
        answer = wire.maybe_read()
        while answer is not None and answer.opcode == GOAWAY:
            answer = wire.maybe_read()
        assert answer is None or (answer.call_id, answer.flags & 0x04) == (1, 0x04)


def test_a_known_operation_that_is_not_served_gets_a_system_error(target):
    """SPEC "Errors that end a connection", a request-agnostic error. Rule: not-served."""
    with Wire(target.endpoint) as wire:
        answer = wire.ask(frame(Opcode.FETCH, 1, encode_header(fetch_request())))
        assert (answer.opcode, answer.call_id, answer.flags) == (Opcode.FETCH, 1, 0x07)
        assert not is_success(decode_system_error(answer.header).status)


def test_allocate_id_allocates_a_unique_identifier(target):
    """SPEC "ALLOCATE_ID", "a unique identifier". Rule: allocate-id."""
    header = encode_header(IdAllocationRequest(timeout_ms=10_000, host="conformance"))
    with Wire(target.endpoint) as one, Wire(target.endpoint) as other:
        answers = []
        for call_id in range(1, 21):
            one.send(frame(ALLOCATE_ID, call_id, header))
            other.send(frame(ALLOCATE_ID, call_id, header))
            answers += [one.read(), other.read()]
    found = [decode_header(IdAllocationResponse, answer.header) for answer in answers]
    assert all(is_success(each.status) for each in found)
    assert len({each.id for each in found}) == len(found)

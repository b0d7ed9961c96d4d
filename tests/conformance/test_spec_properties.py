"""Properties of streams, and cursors that are expected to be somewhere: extensions."""

from contextlib import asynccontextmanager

import pytest

from sbp_core.errors import StatusCode
from sbp_core.properties import PROPERTIES_MAX, PROPERTY_KEY_LENGTH_MAX, PROPERTY_VALUE_BYTES_MAX
from sbp_core.wire.headers import (
    CommitCursorsRequest,
    CreateStreamsRequest,
    Cursor,
    DeleteStreamsRequest,
    DescribeCursorsRequest,
    DescribeStreamsRequest,
    Feature,
    HeartbeatRequest,
    Stream,
    StreamProperty,
    UpdateStreamsRequest,
)
from sbp_core.wire.opcodes import Opcode

MS = 10_000
UNCHANGED = -1


@pytest.fixture
def at_streams(target):
    """Run a test with a client of the PD and streams of its own, where properties are known."""

    def run(body, count=1):
        async def of(target):
            async with known(target) as pd, target.streams(count) as placed:
                await body(pd, *(each.stream_id for each in placed))

        target.run(of)

    return run


@asynccontextmanager
async def known(target):
    async with target.pd() as pd:
        beat = HeartbeatRequest("c", features=(Feature("compare-and-set"),))
        (answer,) = await pd.ask(Opcode.HEARTBEAT, beat)
        if not answer.features:
            pytest.skip("the server knows no properties")
        yield pd


def tables(properties):
    return tuple(StreamProperty(*each) for each in properties.items())


def change(stream_id, properties=None, expected=None, **fields):
    return Stream(
        stream_id,
        retention_period_ms=fields.pop("retention_period_ms", UNCHANGED),
        properties=tables(properties or {}),
        expected_properties=tables(expected or {}),
        **fields,
    )


async def update(pd, *streams):
    answers = await pd.ask(Opcode.UPDATE_STREAMS, UpdateStreamsRequest(MS, streams))
    return [each.status.code for answer in answers for each in answer.update_responses]


async def described(pd, *stream_ids, with_properties=True):
    request = DescribeStreamsRequest(MS, stream_ids, with_properties=with_properties)
    answers = await pd.ask(Opcode.DESCRIBE_STREAMS, request)
    return [each.stream for answer in answers for each in answer.describe_responses]


async def properties_of(pd, stream_id):
    (stream,) = await described(pd, stream_id)
    return {each.key: each.value for each in stream.properties}


def test_properties_are_set_and_removed_and_described_where_they_are_asked_for(at_streams):
    """Rule: properties-updated, describe-properties, update-streams."""

    async def body(pd, one, two):
        properties = {"owner": "billing", "b": "", "a": "\U0001f600"}
        assert await update(pd, change(one, properties)) == [0]
        first, second = await described(pd, one, two)
        assert [each.key for each in first.properties] == ["a", "b", "owner"]
        assert second.properties == ()
        for each in await described(pd, one, two, with_properties=False):
            assert each.properties == ()
        assert await update(pd, change(one, {"owner": None, "b": "c", "absent": None})) == [0]
        assert await properties_of(pd, one) == {"a": "\U0001f600", "b": "c"}

    at_streams(body, 2)


def test_streams_are_created_with_their_properties(at_streams):
    """CREATE_STREAMS. Rule: create-streams, properties-deleted, properties-refused."""

    async def body(pd, _):
        asked = [
            Stream(name="conformance-properties", properties=tables({"a": "b"})),
            Stream(properties=tables({"a": None})),
            Stream(properties=tables({str(each): "" for each in range(PROPERTIES_MAX + 1)})),
        ]
        answers = await pd.ask(Opcode.CREATE_STREAMS, CreateStreamsRequest(MS, tuple(asked)))
        (made, *refused) = [each for answer in answers for each in answer.create_responses]
        assert [each.status.code for each in refused] == [StatusCode.INVALID_REQUEST] * 2
        assert await properties_of(pd, made.stream.stream_id) == {"a": "b"}
        await pd.ask(Opcode.DELETE_STREAMS, DeleteStreamsRequest(MS, (made.stream,)))
        asked = Stream(name="conformance-properties")
        (answer,) = await pd.ask(Opcode.CREATE_STREAMS, CreateStreamsRequest(MS, (asked,)))
        (again,) = answer.create_responses
        assert await properties_of(pd, again.stream.stream_id) == {}
        await pd.ask(Opcode.DELETE_STREAMS, DeleteStreamsRequest(MS, (again.stream,)))

    at_streams(body)


def test_one_of_two_racing_updates_is_refused_with_all_of_its_changes(at_streams):
    """Rule: properties-expected, properties-updated, partial-failure."""

    async def body(pd, one, two):
        (before,) = await described(pd, one)
        first = change(one, {"leader": "a"}, {"leader": None})
        second = change(one, {"leader": "b", "x": "y"}, {"leader": None}, retention_period_ms=7)
        other = change(two, {"leader": "b"}, {"leader": None})
        failed = StatusCode.CONDITION_FAILED
        assert await update(pd, first, second, other) == [0, failed, 0]
        (stream, _) = await described(pd, one, two)
        assert stream.properties == tables({"leader": "a"})
        assert stream.retention_period_ms == before.retention_period_ms
        assert await update(pd, first) == [failed], "a repeat changes nothing"
        kept = change(one, {"leader": ""}, {"leader": "a"}, retention_period_ms=9)
        assert await update(pd, kept) == [0]
        for wrong in (None, "a", "\0"):
            code = StatusCode.INVALID_REQUEST if wrong == "\0" else failed
            assert await update(pd, change(one, {"z": "1"}, {"leader": wrong})) == [code]
        assert await update(pd, change(one, expected={"leader": ""}, ack_count=1)) == [0]
        (stream,) = await described(pd, one)
        assert (stream.retention_period_ms, stream.properties) == (9, tables({"leader": ""}))

    at_streams(body, 2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"": "x"},
        {None: "x"},
        {"a b": "x"},
        {"\u00e9": "x"},
        {"k" * (PROPERTY_KEY_LENGTH_MAX + 1): "x"},
        {"a": "\u00e9" * (PROPERTY_VALUE_BYTES_MAX // 2) + "x"},
        {"a": "x\0"},
        {f"k{each}": None for each in range(2 * PROPERTIES_MAX + 1)},
    ],
)
def test_what_is_no_property_is_refused(at_streams, wrong):
    """Rule: properties-refused."""

    async def body(pd, one):
        streams = (change(one, wrong), change(one, {"a": "b"}, wrong))
        assert await update(pd, *streams) == [StatusCode.INVALID_REQUEST] * 2
        assert await properties_of(pd, one) == {}

    at_streams(body)


def test_a_stream_has_a_largest_number_of_properties(at_streams):
    """Rule: properties-refused."""

    async def body(pd, one):
        value = "\u00e9" * (PROPERTY_VALUE_BYTES_MAX // 2)
        begin = "k" * (PROPERTY_KEY_LENGTH_MAX - 2)
        full = {f"{begin}{each:02}": value for each in range(PROPERTIES_MAX)}
        assert await update(pd, change(one, full)) == [0]
        refused = change(one, {f"{begin}00": "new", "more": "x"}, retention_period_ms=5)
        assert await update(pd, refused) == [StatusCode.INVALID_REQUEST]
        assert await properties_of(pd, one) == full
        others = {f"other{each}": value for each in range(PROPERTIES_MAX)}
        assert await update(pd, change(one, dict.fromkeys(full) | others)) == [
            StatusCode.INVALID_REQUEST if len(full | others) > 2 * PROPERTIES_MAX else 0
        ]
        assert await properties_of(pd, one) == others
        twice = Stream(one, properties=(StreamProperty("a", "1"), StreamProperty("a", "2")))
        assert await update(pd, twice) == [StatusCode.INVALID_REQUEST]
        frames = await described(pd, *[one] * 50)
        assert [len(each.properties) for each in frames] == [PROPERTIES_MAX] * 50

    at_streams(body)


async def commit(pd, group, *cursors):
    request = CommitCursorsRequest(MS, group, cursors)
    (answer,) = await pd.ask(Opcode.COMMIT_CURSORS, request)
    return answer.cursors


def test_a_cursor_is_set_only_where_it_is_expected(at_streams):
    """COMMIT_CURSORS. Rule: cursor-expected, partial-failure."""

    async def body(pd, one, two):
        group = f"conformance-{one}"

        def to(offset, expected, stream_id=one):
            return Cursor(stream_id, offset, expected_offset=expected)

        first, second, other = await commit(pd, group, to(5, -1), to(6, -1), to(1, -2, two))
        assert [each.status.code for each in (first, other)] == [0, 0]
        assert second.status.code == StatusCode.CONDITION_FAILED
        assert int.from_bytes(second.status.detail, "big", signed=True) == 5
        outcomes = {(7, 5): 0, (8, 5): 7, (-1, 6): 7, (-1, 7): 0, (3, 0): -1}
        for cursor, expected in outcomes.items():
            (answer,) = await commit(pd, group, to(*cursor))
            if answer.status.code:
                assert int.from_bytes(answer.status.detail, "big", signed=True) == expected
            else:
                assert expected == 0
        (answer,) = await commit(pd, group, to(1, -3))
        assert answer.status.code == StatusCode.INVALID_REQUEST
        (found,) = await pd.ask(
            Opcode.DESCRIBE_CURSORS, DescribeCursorsRequest(MS, group, (one, two))
        )
        assert [each.next_offset for each in found.cursors] == [-1, 1]
        await commit(pd, group, to(-1, -2, two))

    at_streams(body, 2)

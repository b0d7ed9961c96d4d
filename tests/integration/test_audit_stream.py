"""The stream `_audit`: all events, in order and once, whatever happens to range servers."""

import asyncio
import json
import logging

import pytest

from sbp_core.client import StreamSpec
from sbp_core.errors import (
    PermissionDeniedError,
    ThrottledError,
)
from sbp_core.server.audit import EVENTS
from sbp_core.wire import headers as h
from sbp_core.wire.opcodes import Opcode
from tests.support.audit import (
    MS,
    check,
    events_of,
    grant,
    identified,
    records_of,
)


def by_server(lines: list[str]) -> dict[str, list[str]]:
    """Events in their order, by the server that they are of."""
    found: dict[str, list[str]] = {}
    for line in lines:
        found.setdefault(json.loads(line)["server"], []).append(line)
    return found


def test_events_are_those_of_the_file_in_their_order_and_have_no_secret(tmp_path, caplog):
    caplog.set_level(logging.DEBUG, EVENTS.name)

    async def body():
        async with identified(tmp_path) as (cluster, clients, tokens):
            admin, other = clients["admin"], clients["everything"]
            await grant(admin, "one")
            (stream,) = await admin.create_streams([StreamSpec("a")])
            delete = h.DeleteStreamsRequest(MS, (h.Stream(stream.stream_id),))
            for refused in (
                check(other, cluster.endpoints.pd, Opcode.DELETE_STREAMS, delete),
                grant(other, "two"),
            ):
                with pytest.raises(PermissionDeniedError):
                    await refused
            silent = (h.RangeId(stream.stream_id, 0),)
            report = h.SealRangesRequest(MS, silent, h.SealCause.PRIMARY_SILENT)
            with pytest.raises(ThrottledError):  # no event: appends to the stream lead to such
                await check(clients["server"], cluster.endpoints.pd, Opcode.SEAL_RANGE, report)
            await admin.seal_streams([stream.stream_id])
            await events_of(admin, lambda events: len(events) == 6)
            return await records_of(admin), tokens["everything"]

    records, token = asyncio.run(asyncio.wait_for(body(), 60))
    logged = [each.getMessage() for each in caplog.records if each.name == EVENTS.name]
    stored = [each["value"].decode() for each in records]
    assert by_server(stored) == by_server(logged)
    events = [json.loads(each) for each in by_server(stored)["placement driver"]]
    assert [(each["operation"], each["outcome"]) for each in events] == [
        ("CHANGE_GRANTS", "done"),
        ("CREATE_STREAMS", "done"),
        ("DELETE_STREAMS", "refused"),
        ("CHANGE_GRANTS", "refused"),
        ("SEAL_RANGE", "done"),
    ]
    admin, _, other, *_ = (each["identity"] for each in events)
    assert admin.startswith("CN=alice")
    assert other == "everything"
    for record in records:
        event = json.loads(record["value"])
        assert record["key"].decode() == event["operation"]
        assert record["timestamp"].isoformat(timespec="milliseconds") == event["time"]
        for part in token.split(b"."):
            assert part not in record["value"]

"""The stream of audit events as tests read it, and clusters that have one."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

from sbp_core.access.rights import AUDIT_STREAM, Grant, Right
from sbp_core.client import FetchItem
from sbp_core.errors import (
    SbpError,
)
from sbp_core.records import decode_batch, split_envelopes
from sbp_core.wire import headers as h
from sbp_core.wire.headers import RESPONSE_TABLES, RESULT_FIELDS
from sbp_core.wire.status import check_status
from tests.support.security import (
    Authority,
    Issuer,
    Pair,
    admin_of,
    connected,
    greet,
    identified_settings,
    served,
)

MS = 10_000


async def records_of(client) -> list[dict]:
    """The records of the stream, as rows."""
    (found,) = await client.find_streams([AUDIT_STREAM]) or [None]
    records: list[dict] = []
    while found is not None:
        item = FetchItem(found.stream_id, len(records), None, 1 << 20)
        (outcome,) = [each async for each in client.fetch([item])]
        if outcome.error is not None or not outcome.payload:
            break
        for each in split_envelopes(outcome.payload):
            records += decode_batch(each).to_pylist()
    return records


async def events_of(client, is_there) -> list[dict]:
    """The events in the stream, once they are as `is_there` says; a test has a deadline."""
    while True:
        try:
            events = [json.loads(each["value"]) for each in await records_of(client)]
        except SbpError:
            events = []
        if is_there(events):
            return events
        await asyncio.sleep(0.05)


def subjects(events: list[dict]) -> list[str]:
    """The subjects that got a grant."""
    done = (each for each in events if each["outcome"] == "done")
    return [each["subject"] for each in done if each["operation"] == "CHANGE_GRANTS"]


async def grant(client, *names: str) -> None:
    for name in names:
        await client.change_grants([Grant(name, Right.READ, "a")])


async def stream_of(client, is_there=lambda stream: True):
    """The stream, once it is there, as `is_there` says; a test has a deadline."""
    while True:
        found = await client.find_streams([AUDIT_STREAM])
        if found and is_there(found[0]):
            return found[0]
        await asyncio.sleep(0.02)


def run(body, seconds=60):
    asyncio.run(asyncio.wait_for(body, seconds))


@asynccontextmanager
async def identified(folder, **changes):
    """A cluster with identities, clients by name, and the tokens of those without a certificate."""
    authority, issuer = Authority(folder / "authority"), Issuer(folder)
    settings = replace(identified_settings(authority, issuer, folder / "data"), **changes)
    tokens = {name: issuer.token(name) for name in ("auditor", "everything")}
    async with served(settings) as cluster, AsyncExitStack() as stack:
        enter = stack.enter_async_context
        endpoints = cluster.endpoints
        clients = {
            "admin": await enter(connected(endpoints.pd, authority.client(admin_of(authority))))
        }
        for name, token in tokens.items():
            clients[name] = await enter(connected(endpoints.pd, authority.client()))
            for endpoint in (endpoints.pd, *endpoints.range_servers):
                await greet(clients[name], endpoint, token)
        server = authority.client(Pair(settings.tls_cert_file, settings.tls_key_file))
        clients["server"] = await enter(connected(endpoints.pd, server))
        yield cluster, clients, tokens


async def check(client, endpoint, opcode, request, payload=()):
    """Make a call of one item; raise its error."""
    (frame,) = await client.call(endpoint, opcode, request, payload)
    answer = h.decode_header(RESPONSE_TABLES[opcode], frame.header)
    check_status(getattr(answer, RESULT_FIELDS[type(answer)])[0].status)

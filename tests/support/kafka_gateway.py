"""Requests of Kafka's clients to a gateway that has a pretended cluster."""

import asyncio
import io
from datetime import timedelta
from types import SimpleNamespace

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from sbp_core.client.types import NO_CURSOR, CursorInfo, GroupDescription, GroupInfo, MemberInfo
from sbp_core.errors import NotFoundError, PermissionDeniedError, StreamNotHeldError, invalid
from sbp_core.kafka.calls import Call
from sbp_core.kafka.groups.coordinator import Groups
from sbp_core.kafka.groups.group_requests import APIS
from sbp_core.kafka.messages import decode_request, encode_response

FIND, JOIN, HEARTBEAT, LEAVE, SYNC = 10, 11, 12, 13, 14
COMMIT, FETCH, FORGET, DESCRIBE, LIST, DELETE = 8, 9, 47, 15, 16, 42
BY_KEY = {each.key: each for each in APIS}
SESSION = timedelta(seconds=10)
RANGE = ({"name": "range", "metadata": b"topics"},)
STREAMS = {("orders", 0): 10, ("orders", 1): 11, ("secret", 0): 20, ("gone", 0): 30}
NONE = ErrorCode.none


class Client:
    """A client of a cluster that has the streams above, and cursors of groups."""

    def __init__(self, cursors=None):
        self.cursors = {} if cursors is None else cursors
        self.own_groups = set()
        self.described = []
        self.error = None
        self.may_commit = asyncio.Event()
        self.may_commit.set()

    def _check(self, group):
        if self.error is not None:
            raise self.error
        if group.startswith("private"):
            raise PermissionDeniedError.of("no")
        if "/" in group:
            raise invalid("no")

    async def describe_group(self, group):
        self.described.append(group)
        self._check(group)
        members = (MemberInfo("m", (), (), (), 1, 1, None),) if group in self.own_groups else ()
        return GroupDescription(group, 1, members)

    async def describe_cursors(self, group, stream_ids=()):
        self._check(group)
        found = self.cursors.get(group, {})
        return [
            CursorInfo(each, offset, 1)
            for each, offset in found.items()
            if not stream_ids or each in stream_ids
        ]

    async def list_groups(self):
        return [GroupInfo(each, 1) for each in self.cursors]

    async def commit_cursors(self, group, offsets):
        await self.may_commit.wait()
        self._check(group)
        if group in self.own_groups:
            raise StreamNotHeldError.of("no")
        if 20 in offsets:
            raise PermissionDeniedError.of("no")
        if 30 in offsets:
            raise NotFoundError.of("no")
        found = self.cursors.setdefault(group, {})
        found.update(offsets)
        self.cursors[group] = {x: y for x, y in found.items() if y != NO_CURSOR}
        if not self.cursors[group]:
            del self.cursors[group]


class Gateway:
    def __init__(self, **options):
        self.groups = Groups(**{"initial_delay_s": 0.0} | options)
        self.peers = self
        self.topics = self
        self.elsewhere = set()

    def is_coordinator(self, group):
        return group not in self.elsewhere

    def coordinator_of(self, group):
        return SimpleNamespace(node_id=7, host="gateway", port=9092)

    async def stream_id(self, client, topic, partition):
        return STREAMS.get((topic, partition))

    async def topic_partition(self, client, stream_ids):
        return {stream: at for at, stream in STREAMS.items() if stream in stream_ids}


def _fit(schema, values):
    """Return a message or a part of one; values of fields that the version lacks are left out."""
    made = {}
    for name, field in schema.__dataclass_fields__.items():
        if name not in values:
            continue
        kind, value = field.type, values[name]
        if isinstance(value, tuple) and value and isinstance(value[0], dict):
            (part,) = (each for each in _classes(kind) if hasattr(each, "__dataclass_fields__"))
            value = tuple(_fit(part, each) for each in value)
        made[name] = value
    return schema(**made)


def _classes(kind):
    inner = getattr(kind, "__args__", ())
    return [kind, *(each for one in inner for each in _classes(one))]


async def ask(gateway, client, key, version, /, **values):
    """Return the response to a request; both go through their bytes."""
    schema = load_request_schema(key, version)
    target = io.BytesIO()
    head = {
        "request_api_key": key,
        "request_api_version": version,
        "correlation_id": 1,
        "client_id": "me",
    }
    entity_writer(schema.__header_schema__)(target, _fit(schema.__header_schema__, head))
    entity_writer(schema)(target, _fit(schema, values))
    request = decode_request(target.getvalue())
    answer = await BY_KEY[key].answer(Call(request, client, gateway, "10.0.0.1"))
    encoded = encode_response(key, version, 1, answer)
    response = load_response_schema(key, version)
    _, size = entity_reader(response.__header_schema__)(encoded, 4)
    found, size = entity_reader(response)(encoded, 4 + size)
    return found


def run(body, **options):
    """Run a test of a gateway and a client; afterwards the gateway closes."""

    async def main():
        gateway, client = Gateway(**options), Client()
        try:
            await body(gateway, client)
        finally:
            gateway.groups.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def joining(**values):
    return {
        "group_id": "g",
        "session_timeout": SESSION,
        "rebalance_timeout": SESSION,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": RANGE,
    } | values


async def join(gateway, client, version=9, **values):
    """Join with the two requests that newer versions need."""
    joined = await ask(gateway, client, JOIN, version, **joining(**values))
    if joined.error_code is ErrorCode.member_id_required:
        values["member_id"] = joined.member_id
        joined = await ask(gateway, client, JOIN, version, **joining(**values))
    return joined


async def sync(gateway, client, joined, version=5, **values):
    assigned = tuple(
        {"member_id": each.member_id, "assignment": each.member_id.encode()}
        for each in joined.members
    )
    return await ask(
        gateway,
        client,
        SYNC,
        version,
        **{
            "group_id": "g",
            "generation_id": joined.generation_id,
            "member_id": joined.member_id,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": assigned,
        }
        | values,
    )


async def member(gateway, client, **values):
    """Return what the only member of a stable group has joined."""
    joined = await join(gateway, client, **values)
    assert (await sync(gateway, client, joined)).error_code is NONE
    return joined


def topics(*partitions, offset=5):
    """Return partitions, "topic-1", for OffsetCommit, OffsetFetch and OffsetDelete."""
    split = [each.split("-") for each in partitions]
    return tuple(
        {
            "name": topic,
            "partition_indexes": (int(index),),
            "partitions": (
                {
                    "partition_index": int(index),
                    "committed_offset": offset,
                    "committed_metadata": "note",
                },
            ),
        }
        for topic, index in split
    )


def codes(answer):
    return {
        f"{topic.name}-{each.partition_index}": each.error_code
        for topic in answer.topics
        for each in topic.partitions
    }


async def commit(gateway, client, joined=None, version=9, group="g", parts=("orders-0",), offset=5):
    answer = await ask(
        gateway,
        client,
        COMMIT,
        version,
        group_id=group,
        generation_id_or_member_epoch=-1 if joined is None else joined.generation_id,
        member_id="" if joined is None else joined.member_id,
        topics=topics(*parts, offset=offset),
    )
    return codes(answer)


async def fetch(gateway, client, version=9, group="g", parts=("orders-0",)):
    """Return offsets by partition, and the error code."""
    asked = None if parts is None else topics(*parts)
    values = {"group_id": group, "topics": asked, "groups": ({"group_id": group, "topics": asked},)}
    answer = await ask(gateway, client, FETCH, version, **values)
    (found,) = answer.groups if version >= 8 else (answer,)
    offsets = {
        f"{topic.name}-{each.partition_index}": each.committed_offset
        for topic in found.topics
        for each in topic.partitions
    }
    parts_codes = codes(found).values()
    return offsets, getattr(found, "error_code", next(iter(parts_codes), NONE))

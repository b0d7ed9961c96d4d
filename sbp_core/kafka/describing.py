"""ApiVersions, Metadata, DescribeCluster, DescribeConfigs: what there is, and where."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kio.schema.errors import ErrorCode

from sbp_core import limits
from sbp_core.client.types import StreamInfo
from sbp_core.errors import SbpError
from sbp_core.kafka.calls import Api, Call
from sbp_core.kafka.messages import Fields
from sbp_core.kafka.problems import error_code
from sbp_core.kafka.topic_changes import CLEANUP_PROPERTY, DELETE, TOPIC_RESOURCE, create_topic

_BROKER_RESOURCE: Final = 4
_TOPIC_SOURCE: Final = 1
_DEFAULT_SOURCE: Final = 5
_STRING: Final = 2
_INT: Final = 3
_LONG: Final = 5
_LIST: Final = 7
_FOREVER: Final = -1
_RECORDS_BYTES_MAX: Final = limits.BATCH_BYTES_MAX - limits.MIB
"""Bytes of a record batch of Kafka that surely fit into a batch of ours."""


async def metadata(call: Call) -> Fields:
    """Return the gateways, and the partitions of topics with the gateway that serves each."""
    body, peers = call.body, call.gateway.peers
    is_all = body.topics is None or (call.version == 0 and not body.topics)
    if is_all:
        found = await call.gateway.topics.all(call.client)
        topics = [_topic(call, name, partitions) for name, partitions in sorted(found.items())]
    else:
        is_creating = getattr(body, "allow_auto_topic_creation", True)
        topics = [await _named(call, each.name, is_creating=is_creating) for each in body.topics]
    return {
        "brokers": _brokers(call),
        "cluster_id": await call.gateway.cluster_id(call.client),
        "controller_id": peers.controller.node_id,
        "topics": topics,
    }


async def _named(call: Call, name: str, *, is_creating: bool) -> Fields:
    """Return a topic; it is created if it is not there and may be."""
    topics = call.gateway.topics
    try:
        partitions = await topics.partitions(call.client, name)
        if not partitions and is_creating and call.gateway.creates_topics:
            result = await create_topic(call, name, call.gateway.partition_count)
            if result["error_code"] not in {ErrorCode.none, ErrorCode.topic_already_exists}:
                return {"name": name, "error_code": result["error_code"]}
            partitions = await topics.partitions(call.client, name)
    except SbpError as error:
        return {"name": name, "error_code": error_code(error)}
    if not partitions:
        return {"name": name, "error_code": ErrorCode.unknown_topic_or_partition}
    return _topic(call, name, partitions)


def _topic(call: Call, name: str, partitions: tuple[StreamInfo, ...]) -> Fields:
    return {
        "name": name,
        "error_code": ErrorCode.none,
        "partitions": [_partition(call, *each) for each in enumerate(partitions)],
    }


def _partition(call: Call, index: int, stream: StreamInfo) -> Fields:
    node_id = call.gateway.peers.server_of(str(stream.stream_id)).node_id
    return {
        "error_code": ErrorCode.none,
        "partition_index": index,
        "leader_id": node_id,
        "replica_nodes": [node_id],
        "isr_nodes": [node_id],
    }


def _brokers(call: Call, id_name: str = "node_id") -> list[Fields]:
    return [
        {id_name: each.node_id, "host": each.host, "port": each.port}
        for each in call.gateway.peers.nodes
    ]


async def describe_cluster(call: Call) -> Fields:
    """Return the gateways."""
    return {
        "error_code": ErrorCode.none,
        "cluster_id": await call.gateway.cluster_id(call.client),
        "controller_id": call.gateway.peers.controller.node_id,
        "brokers": _brokers(call, "broker_id"),
    }


async def describe_configs(call: Call) -> Fields:
    """Return the settings of topics, as far as streams have them."""
    return {"results": [await _described(call, each) for each in call.body.resources]}


async def _described(call: Call, resource: Any) -> Mapping[str, Any]:
    answer: dict[str, Any] = {
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
    }
    if resource.resource_type == _BROKER_RESOURCE:
        return answer
    if resource.resource_type != TOPIC_RESOURCE:
        return answer | {"error_code": ErrorCode.invalid_request}
    try:
        found = await call.gateway.topics.partitions(call.client, resource.resource_name)
        if not found:
            return answer | {"error_code": ErrorCode.unknown_topic_or_partition}
        (properties,) = (await call.client.describe_properties([found[0].stream_id])).values()
    except SbpError as error:
        return answer | {"error_code": error_code(error)}
    wanted = resource.configuration_keys
    configs = _configs(found[0], properties)
    return answer | {
        "configs": [each for each in configs if wanted is None or each["name"] in wanted]
    }


def _configs(stream: StreamInfo, properties: Mapping[str, str]) -> list[dict[str, Any]]:
    policy = properties.get(CLEANUP_PROPERTY, DELETE)
    kept_ms, kept_bytes = stream.retention_period_ms, stream.retention_bytes
    values = (
        ("cleanup.policy", policy, policy == DELETE, _LIST),
        ("retention.ms", kept_ms or _FOREVER, not kept_ms, _LONG),
        ("retention.bytes", kept_bytes or _FOREVER, not kept_bytes, _LONG),
        ("max.message.bytes", _RECORDS_BYTES_MAX, True, _INT),
        ("min.insync.replicas", max(stream.ack_count, 1), True, _INT),
        ("message.timestamp.type", "CreateTime", True, _STRING),
    )
    return [
        {
            "name": name,
            "value": str(value),
            "read_only": not name.startswith("retention."),
            "is_default": is_default,
            "config_source": _DEFAULT_SOURCE if is_default else _TOPIC_SOURCE,
            "config_type": kind,
        }
        for name, value, is_default, kind in values
    ]


APIS: Final = (
    Api(3, 0, 8, metadata),  # librdkafka writes 9 with a tag that kio does not skip
    Api(60, 0, 1, describe_cluster),
    Api(32, 1, 4, describe_configs),
)

"""CreateTopics, DeleteTopics, CreatePartitions, AlterConfigs, DeleteRecords: changes of streams."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from kio.schema.errors import ErrorCode

from sbp_core.client.types import StreamInfo, StreamSpec, StreamUpdate
from sbp_core.errors import InvalidRequestError, SbpError
from sbp_core.kafka.calls import Api, Call
from sbp_core.kafka.messages import Fields, by_topic
from sbp_core.kafka.problems import error_code
from sbp_core.kafka.topics import TOPIC_LENGTH_MAX
from sbp_core.settings.kafka_settings import PARTITIONS_MAX

TOPIC_RESOURCE: Final = 2
CLEANUP_PROPERTY: Final = "kafka.cleanup.policy"
"""The property of a stream with the policy that its topic was created with."""
DELETE: Final = "delete"
_COMPACT: Final = "compact"
_TOPIC: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{TOPIC_LENGTH_MAX}}}", re.ASCII)
_RETENTION: Final = {"retention.ms": "retention_period_ms", "retention.bytes": "retention_bytes"}
"""Settings of topics that can be changed, and the fields of streams with the same meaning."""
_ALTER_CONFIGS: Final = 33
_SET, _UNSET = 0, 1
_DEFAULT: Final = -1
_UNLIMITED: Final = -1
_END: Final = -1
_OF_BROKERS: Final = re.compile(
    r"(segment|index|flush|file|message|min|max|unclean|preallocate|compression|delete|follower"
    r"|leader|remote|local)\b.*"
)
"""Settings of topics that are about a broker's own files: accepted, without an effect."""


@dataclass(frozen=True, slots=True)
class _Settings:
    """The settings of a topic that streams have, too."""

    retention_period_ms: int = 0
    retention_bytes: int = 0
    cleanup_policy: str = DELETE


class _ConfigError(Exception):
    """A setting of a topic that cannot be had."""


def _settings(configs: Iterable[tuple[str, str | None]]) -> _Settings:
    """Return the settings of a new topic. Raises _ConfigError."""
    found: dict[str, Any] = {}
    for name, value in configs:
        if name in _RETENTION:
            found[_RETENTION[name]] = _limit(name, value)
        elif name == "cleanup.policy":
            found["cleanup_policy"] = _policy(value or DELETE)
        elif not _OF_BROKERS.fullmatch(name):
            raise _ConfigError(f"{name[:100]!a} is no setting of topics here")
    return _Settings(**found)


def _limit(name: str, value: str | None) -> int:
    """Return a limit as streams have it: 0 for none."""
    with suppress(ValueError):
        limit = int(value or _UNLIMITED)
        if limit > 0 or limit == _UNLIMITED:
            return max(limit, 0)
    raise _ConfigError(f"{name} {value!a} is neither -1, to keep all, nor a number above 0")


def _policy(value: str) -> str:
    policies = {each.strip() for each in value.split(",")}
    if not policies <= {DELETE, _COMPACT}:
        raise _ConfigError(f"cleanup.policy {value[:100]!a} is neither delete nor compact")
    return value


def _specs(
    call: Call, topic: str, indexes: Iterable[int], replicas: int, settings: _Settings
) -> list[StreamSpec]:
    """Return the streams of partitions. A compacted topic keeps all records: nothing expires."""
    is_compacted = settings.cleanup_policy == _COMPACT
    properties = {CLEANUP_PROPERTY: settings.cleanup_policy} if is_compacted else {}
    return [
        StreamSpec(
            f"{topic}-{index}",
            replica_count=replicas if replicas > 0 else call.gateway.replica_count,
            retention_period_ms=0 if is_compacted else settings.retention_period_ms,
            retention_bytes=0 if is_compacted else settings.retention_bytes,
            properties=properties,
        )
        for index in indexes
    ]


async def create_topic(
    call: Call,
    topic: str,
    partition_count: int,
    replicas: int = _DEFAULT,
    configs: Iterable[tuple[str, str | None]] = (),
    *,
    is_dry: bool = False,
) -> Fields:
    """Create the streams of a topic; return the result."""
    count = call.gateway.partition_count if partition_count == _DEFAULT else partition_count
    failed = _refusal_of(call, topic, count)
    if failed is not None:
        return failed
    if replicas == 0 or replicas < _DEFAULT:
        return _failed(ErrorCode.invalid_replication_factor, f"{replicas} replicas")
    try:
        settings = _settings(configs)
    except _ConfigError as error:
        return _failed(ErrorCode.invalid_config, str(error))
    try:
        call.gateway.topics.forget(call.client)  # a topic that is not known may be new
        if topic in await call.gateway.topics.all(call.client):
            return _failed(ErrorCode.topic_already_exists, f"topic {topic} exists")
        if not is_dry:
            specs = _specs(call, topic, range(count), replicas, settings)
            await call.client.create_streams(specs)
    except InvalidRequestError as error:
        return _failed(ErrorCode.invalid_replication_factor, str(error))
    except SbpError as error:
        return _failed(error_code(error), str(error))
    finally:
        call.gateway.topics.forget(call.client)
    return {
        "error_code": ErrorCode.none,
        "num_partitions": count,
        "replication_factor": replicas if replicas > 0 else call.gateway.replica_count,
    }


def _refusal_of(call: Call, topic: str, count: int) -> Fields | None:
    """Return the result for a topic that cannot be, None for one that can."""
    if not _TOPIC.fullmatch(topic) or topic in {".", ".."}:
        return _failed(
            ErrorCode.invalid_topic_exception,
            f"a topic has 1 to {TOPIC_LENGTH_MAX} letters, digits, '.', '_' and '-'",
        )
    if not call.gateway.topics.shows(topic):
        return _failed(ErrorCode.topic_authorization_failed, "the gateway does not serve the topic")
    if not 1 <= count <= PARTITIONS_MAX:
        return _failed(
            ErrorCode.invalid_partitions, f"{count} partitions are not within 1..{PARTITIONS_MAX}"
        )
    return None


def _failed(code: ErrorCode, message: str) -> Fields:
    return {"error_code": code, "error_message": message}


async def create_topics(call: Call) -> Fields:
    """Create topics. Assignments of partitions to brokers only say how many there are."""
    results = []
    seen: set[str] = set()
    for topic in call.body.topics:
        count = len(topic.assignments) or topic.num_partitions
        replicas = topic.replication_factor
        if topic.assignments:
            replicas = len(topic.assignments[0].broker_ids)
        if topic.name in seen:
            result = _failed(ErrorCode.invalid_request, f"{topic.name} is named twice")
        else:
            configs = [(each.name, each.value) for each in topic.configs]
            result = await create_topic(
                call, topic.name, count, replicas, configs, is_dry=call.body.validate_only
            )
        seen.add(topic.name)
        results.append({"name": topic.name, "topic_id": None, **result})
    return {"topics": results}


async def delete_topics(call: Call) -> Fields:
    """Delete the streams of topics."""
    responses = []
    for topic in call.body.topic_names:
        result = await _with_partitions(call, topic, _delete)
        responses.append({"name": topic, **result})
    return {"responses": responses}


async def _delete(call: Call, partitions: tuple[StreamInfo, ...]) -> Fields:
    await call.client.delete_streams([each.stream_id for each in partitions])
    return _DONE


async def create_partitions(call: Call) -> Fields:
    """Create the streams of more partitions, with the settings of the first one."""
    results = []
    for topic in call.body.topics:

        async def extend(
            call: Call, partitions: tuple[StreamInfo, ...], topic: Any = topic
        ) -> Fields:
            first = partitions[0]
            if first.name != f"{topic.name}-0":
                return _failed(ErrorCode.invalid_partitions, "the topic is a single stream")
            if not len(partitions) < topic.count <= PARTITIONS_MAX:
                return _failed(
                    ErrorCode.invalid_partitions,
                    f"the topic has {len(partitions)} partitions, and {topic.count} is not more,"
                    f" or more than {PARTITIONS_MAX}",
                )
            properties = await call.client.describe_properties([first.stream_id])
            policy = properties[first.stream_id].get(CLEANUP_PROPERTY, DELETE)
            settings = _Settings(first.retention_period_ms, first.retention_bytes, policy)
            added = range(len(partitions), topic.count)
            if not call.body.validate_only:
                await call.client.create_streams(
                    _specs(call, topic.name, added, first.replica_count, settings)
                )
            return _DONE

        results.append({"name": topic.name, **await _with_partitions(call, topic.name, extend)})
    return {"results": results}


async def _with_partitions(call: Call, topic: str, change: Any) -> Mapping[str, Any]:
    """Return the result of changing a topic that exists."""
    try:
        partitions = await call.gateway.topics.partitions(call.client, topic)
        if not partitions:
            return _failed(ErrorCode.unknown_topic_or_partition, f"there is no topic {topic}")
        result: Fields = await change(call, partitions)
        return result
    except _ConfigError as error:
        return _failed(ErrorCode.invalid_config, str(error))
    except SbpError as error:
        return _failed(error_code(error), str(error))
    finally:
        call.gateway.topics.forget(call.client)


async def alter_configs(call: Call) -> Fields:
    """Change the retention of topics. AlterConfigs sets back what it does not name."""
    responses = []
    for resource in call.body.resources:

        async def alter(
            call: Call, partitions: tuple[StreamInfo, ...], resource: Any = resource
        ) -> Fields:
            properties = await call.client.describe_properties([partitions[0].stream_id])
            changed = _changed(resource, is_whole=call.request.api_key == _ALTER_CONFIGS)
            if CLEANUP_PROPERTY in properties[partitions[0].stream_id]:
                raise _ConfigError("a topic with cleanup.policy=compact keeps all records")
            if not call.body.validate_only:
                updates = [StreamUpdate(each.stream_id, **changed) for each in partitions]
                await call.client.update_streams(updates)
            return _DONE

        name, kind = resource.resource_name, resource.resource_type
        if kind == TOPIC_RESOURCE:
            result = await _with_partitions(call, name, alter)
        else:
            result = _failed(ErrorCode.invalid_config, "only settings of topics can be changed")
        responses.append({"resource_type": kind, "resource_name": name, **result})
    return {"responses": responses}


def _changed(resource: Any, *, is_whole: bool) -> dict[str, Any]:
    """Return the fields of streams that a request changes. Raises _ConfigError."""
    changed: dict[str, Any] = dict.fromkeys(_RETENTION.values(), 0) if is_whole else {}
    for each in resource.configs:
        operation = getattr(each, "config_operation", _SET)
        if each.name not in _RETENTION or operation not in {_SET, _UNSET}:
            raise _ConfigError(
                f"{' and '.join(_RETENTION)} can be set and deleted, not {each.name[:100]!a}"
            )
        value = each.value if operation == _SET else None
        changed[_RETENTION[each.name]] = _limit(each.name, value)
    return changed


async def delete_records(call: Call) -> Fields:
    """Trim streams up to an offset."""
    topics = call.body.topics
    done = [await _trimmed(call, topic.name, each) for topic in topics for each in topic.partitions]
    return {"topics": by_topic(topics, done)}


async def _trimmed(call: Call, topic: str, partition: Any) -> Fields:
    at = {"partition_index": partition.partition_index}
    failed = at | {"low_watermark": -1}
    try:
        stream_id = await call.gateway.topics.stream_id(
            call.client, topic, partition.partition_index
        )
        if stream_id is None:
            return failed | {"error_code": ErrorCode.unknown_topic_or_partition}
        (bounds,) = await call.client.stream_bounds([stream_id])
        offset = bounds.next_offset if partition.offset == _END else partition.offset
        if not 0 <= offset <= bounds.next_offset:
            return failed | {"error_code": ErrorCode.offset_out_of_range}
        if offset > bounds.start_offset:
            await call.client.trim_streams({stream_id: offset})
    except SbpError as error:
        return failed | {"error_code": error_code(error)}
    return at | {"error_code": ErrorCode.none, "low_watermark": max(offset, bounds.start_offset)}


_DONE: Final[Fields] = {"error_code": ErrorCode.none}

APIS: Final = (
    Api(19, 2, 7, create_topics),
    Api(20, 1, 5, delete_topics),
    Api(37, 0, 3, create_partitions),
    Api(_ALTER_CONFIGS, 0, 2, alter_configs),
    Api(44, 0, 1, alter_configs),
    Api(21, 0, 2, delete_records),
)

"""The APIs that are served, and ApiVersions, which tells clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kio.schema.errors import ErrorCode

from sbp_core.errors import UnsupportedError
from sbp_core.kafka import describing, fetching, producing, signing_in, topic_changes
from sbp_core.kafka.calls import Api
from sbp_core.kafka.groups import group_requests
from sbp_core.kafka.messages import Fields, Request, encode_response, peek_api

PRODUCE: Final = 0
_API_VERSIONS: Final = 18
_CORRELATION_AT: Final = slice(4, 8)


_SERVED: Final = (
    *producing.APIS,
    *fetching.APIS,
    *describing.APIS,
    *topic_changes.APIS,
    *group_requests.APIS,
    *signing_in.APIS,
    Api(_API_VERSIONS, 0, 3, signing_in.unreachable),
)
APIS: Final[Mapping[int, Api]] = {each.key: each for each in _SERVED}
_KEYS: Final = [
    {"api_key": each.key, "min_version": each.first_version, "max_version": each.last_version}
    for each in sorted(_SERVED, key=lambda api: api.key)
]


def maybe_versions(request: Request) -> Fields | None:
    """Return the answer to ApiVersions, which callers may ask for before they sign in."""
    if request.api_key != _API_VERSIONS:
        return None
    return {"error_code": ErrorCode.none, "api_keys": _KEYS}


def refuse_version(frame: bytes) -> bytes | None:
    """Return the response to a request for ApiVersions in a version that is not served.

    Raises UnsupportedError for any other API or version that is not: such a connection ends.
    """
    key, version = peek_api(frame)
    api = APIS.get(key)
    if api is not None and api.first_version <= version <= api.last_version:
        return None
    if key != _API_VERSIONS:
        raise UnsupportedError.of(f"version {version} of API {key} is not served")
    correlation_id = int.from_bytes(frame[_CORRELATION_AT], "big", signed=True)
    fields = {"error_code": ErrorCode.unsupported_version, "api_keys": _KEYS}
    return encode_response(key, 0, correlation_id, fields)

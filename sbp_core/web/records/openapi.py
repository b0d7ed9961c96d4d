"""The description of the API in OpenAPI 3.1, from the declarations of its operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from sbp_core import __version__
from sbp_core.errors import Outcome
from sbp_core.web.problems import MEDIA_TYPE
from sbp_core.web.records.declaring import Answer, Operation, Parameter, Place, Schema

_PROBLEMS: Final = (400, 401, 403, 404, 429, 500, 502, 503, 504)
"""Problems that each operation may answer."""
_PROBLEM: Final[Schema] = {
    "description": "Problem details (RFC 9457).",
    "type": "object",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "outcome": {"enum": [each.value for each in Outcome]},
        "retriable": {"type": "boolean"},
        "code": {"type": "integer"},
        "line": {"type": "integer"},
    },
    "required": ["type", "title", "status", "detail", "outcome", "retriable"],
}


def describe(operations: Sequence[Operation]) -> dict[str, Any]:
    """Return the description."""
    paths: dict[str, dict[str, Any]] = {}
    for each in operations:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Records of the Streaming Batch Protocol over HTTP",
            "version": __version__,
        },
        "paths": paths,
        "components": {
            "schemas": {"Problem": _PROBLEM},
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}
            },
        },
        "security": [{}, {"token": []}],
    }


def _operation(operation: Operation) -> dict[str, Any]:
    responses = {str(status): _answer(each) for status, each in operation.answers.items()}
    for status in sorted({*_PROBLEMS, *operation.problems}):
        responses[str(status)] = {
            "description": HTTPStatus(status).phrase,
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.doc,
        "parameters": list(map(_parameter, operation.parameters)),
        "responses": responses,
    }
    if operation.contents:
        described["requestBody"] = {"required": True, "content": _contents(operation.contents)}
    return described


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.place.value,
        "description": parameter.doc,
        "required": parameter.place is Place.PATH,
        "schema": parameter.schema,
    }


def _answer(answer: Answer) -> dict[str, Any]:
    described: dict[str, Any] = {"description": answer.doc}
    if answer.contents:
        described["content"] = _contents(answer.contents)
    if answer.headers:
        described["headers"] = {
            name: {"description": doc, "schema": {"type": "string"}}
            for name, doc in answer.headers.items()
        }
    return described


def _contents(contents: Mapping[str, Schema]) -> dict[str, Any]:
    return {media: {"schema": schema} for media, schema in contents.items()}

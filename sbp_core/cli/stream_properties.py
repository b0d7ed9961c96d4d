"""The properties of streams as options give them, also the one by which a stream lands."""

from __future__ import annotations

from collections.abc import Sequence

from sbp_core.client import Client
from sbp_core.errors import ConfigurationError


def check_lake(client: Client, ref: int | str, table: str) -> None:
    """Raise ConfigurationError or SchemaError if a stream cannot land in a table."""
    from sbp_core.lake.columns import check_table_name, table_schema

    check_table_name(table)
    (info,) = client.describe_streams([ref])
    for newest in client.describe_schemas([info.stream_id])[info.stream_id][-1:]:
        table_schema(newest.schema.arrow)


def properties_of(client: Client, ref: int | str) -> dict[str, str]:
    """Return the properties of a stream by key. Raises NotFoundError."""
    (info,) = client.describe_streams([ref])
    return client.describe_properties([info.stream_id])[info.stream_id]


def named_once(present: Sequence[tuple[str, str]], absent: Sequence[str]) -> dict[str, str | None]:
    """Return properties by key, None if absent. Raises ConfigurationError for a key named twice."""
    found: dict[str, str | None] = {**dict(present), **dict.fromkeys(absent)}
    if len(found) < len(present) + len(absent):
        raise ConfigurationError("a property is named twice; name each once")
    return found

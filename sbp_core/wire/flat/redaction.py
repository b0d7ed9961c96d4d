"""Tables as text, for messages and logs, without the secrets in them."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct


def repr_without(table: Struct, secret_fields: Collection[str]) -> str:
    """Return the `repr` of a table, with `***` in place of fields that are set and secret."""
    shown = ", ".join(
        f"{name}={'***' if name in secret_fields and value else repr(value)}"
        for name in table.__struct_fields__
        for value in (getattr(table, name),)
    )
    return f"{type(table).__name__}({shown})"

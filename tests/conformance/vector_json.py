"""Tables of the wire <-> JSON, in the form that flatc itself reads and prints."""

import random

from sbp_core.wire import headers
from sbp_core.wire._generated import LAYOUTS
from sbp_core.wire.flat import Bytes, Table, Vector


def to_json(value):
    """A table's fields that are not at their defaults; bytes are lists, enums their names."""
    return {
        field.name: _to_json(field.kind, content)
        for field in LAYOUTS[type(value)]
        if (content := getattr(value, field.name)) not in (field.default, (), b"")
    }


def _to_json(kind, content):
    if isinstance(kind, Table):
        return to_json(content)
    if isinstance(kind, Vector):
        return [_to_json(kind.element, item) for item in content]
    if isinstance(kind, Bytes):
        return list(content)
    return content.name if isinstance(content, headers.ClientRole) else content


def from_json(name, fields):
    """The table that JSON describes."""
    table = getattr(headers, name)
    kinds = {field.name: field.kind for field in LAYOUTS[table]}
    return table(**{key: _from_json(kinds[key], item) for key, item in fields.items()})


def _from_json(kind, item):
    if isinstance(kind, Table):
        return from_json(kind.name, item)
    if isinstance(kind, Vector):
        return tuple(_from_json(kind.element, each) for each in item)
    if isinstance(kind, Bytes):
        return bytes(item)
    if isinstance(item, str) and item in headers.ClientRole.__members__:
        return headers.ClientRole[item]
    return item


def feedings(data):
    """Pieces in which a decoder may get bytes: all at once, one by one, in random splits."""
    chance = random.Random(len(data))
    shapes = [[data], [data[i : i + 1] for i in range(len(data))]]
    for _ in range(5):
        cuts = sorted(chance.sample(range(1, len(data)), 3))
        shapes.append([data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)])
    return shapes

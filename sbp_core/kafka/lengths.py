"""The lengths in a request, which are compared with its bytes before kio reads it.

kio allocates as much as a list declares before it reads the first element, and the process ends if
there is not so much memory. A list of the smallest elements takes a hundred times its bytes, so
elements are counted, too.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, Final

from sbp_core.errors import FrameError

ELEMENTS_MAX: Final = 100_000
"""Elements of all lists of a request."""
_SIZES: Final = {
    "bool": 1, "int8": 1, "int16": 2, "uint16": 2, "error_code": 2, "int32": 4, "timedelta_i32": 4,
    "int64": 8, "float64": 8, "timedelta_i64": 8, "datetime_i64": 8, "uuid": 16,
}  # fmt: skip
_LENGTH_BYTES: Final = {"string": 2, "bytes": 4, "records": 4}
_LIST_LENGTH_BYTES: Final = 4
_VARINT_BYTES_MAX: Final = 5
_COMPACT: Final = 0
"""Instead of a number of bytes: a length is a varint, and one more than the length."""


@dataclass(slots=True)
class _Walk:
    """A place in the bytes of a request, and how many more elements it may have."""

    frame: bytes
    position: int
    elements_left: int = ELEMENTS_MAX

    def skip(self, size: int) -> None:
        self.position += size
        if self.position > len(self.frame):
            raise FrameError("the request ends in a field")

    def varint(self) -> int:
        found = 0
        for shift in range(0, 7 * _VARINT_BYTES_MAX, 7):
            self.skip(1)
            byte = self.frame[self.position - 1]
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return found
        raise FrameError("a number of the request has no end")

    def length(self, length_bytes: int, *, is_optional: bool) -> int:
        """Return a length, 0 for null."""
        if length_bytes == _COMPACT:
            found = self.varint() - 1
        else:
            start = self.position
            self.skip(length_bytes)
            found = int.from_bytes(self.frame[start : self.position], "big", signed=True)
        if found < 0 and not is_optional:
            raise FrameError("a field of the request is null that must not be")
        return max(found, 0)


_Step = Callable[[_Walk], None] | int
"""Passes a field, or the number of bytes that the field always has."""


def check_lengths(schema: type, frame: bytes, start: int) -> int:
    """Return the end of the message that begins at `start`.

    Raises FrameError unless the message has all that its lengths declare.
    """
    walk = _Walk(frame, start)
    _take(walk, _struct(schema))
    return walk.position


def _take(walk: _Walk, step: _Step) -> None:
    if isinstance(step, int):
        walk.skip(step)
    else:
        step(walk)


@cache
def _struct(schema: Any) -> _Step:
    """Return what passes a message, or a part of one."""
    plain: list[_Step] = []
    tagged: dict[int, _Step] = {}
    for each in fields(schema):
        step = _field(each, is_flexible=schema.__flexible__)
        if "tag" in each.metadata:
            tagged[each.metadata["tag"]] = step
        elif plain and isinstance(step, int) and isinstance(plain[-1], int):
            plain[-1] += step
        else:
            plain.append(step)
    if not schema.__flexible__ and len(plain) == 1 and isinstance(plain[0], int):
        return plain[0]

    def walk_struct(walk: _Walk) -> None:
        for step in plain:
            _take(walk, step)
        if schema.__flexible__:
            _walk_tagged(walk, tagged)

    return walk_struct


def _walk_tagged(walk: _Walk, tagged: Mapping[int, _Step]) -> None:
    for _ in range(walk.varint()):
        tag, size = walk.varint(), walk.varint()
        end = walk.position + size
        if tag in tagged:
            _take(walk, tagged[tag])
            if walk.position != end:
                raise FrameError(f"the field with tag {tag} has another size than it declares")
        else:
            walk.skip(size)


def _field(field: Any, *, is_flexible: bool) -> _Step:
    kind, length_bytes = field.type, _COMPACT if is_flexible else _LIST_LENGTH_BYTES
    is_optional = isinstance(kind, types.UnionType)
    if is_optional:
        (kind,) = (each for each in typing.get_args(kind) if each is not types.NoneType)
    name = field.metadata.get("kafka_type", "")
    if typing.get_origin(kind) is not tuple:
        return _value(kind, name, is_flexible=is_flexible, is_optional=is_optional)
    (kind, _) = typing.get_args(kind)
    item = _value(kind, name, is_flexible=is_flexible, is_optional=False)

    def walk_list(walk: _Walk) -> None:
        count = walk.length(length_bytes, is_optional=is_optional)
        walk.elements_left -= count
        if walk.elements_left < 0:
            raise FrameError(f"a request declares more than {ELEMENTS_MAX} elements of lists")
        if isinstance(item, int):
            walk.skip(count * item)
            return
        for _ in range(count):
            item(walk)

    return walk_list


def _value(kind: Any, name: str, *, is_flexible: bool, is_optional: bool) -> _Step:
    if is_dataclass(kind):
        part: Any = kind
        return _struct(part)
    if name in _SIZES:
        return _SIZES[name]
    length_bytes = _COMPACT if is_flexible else _LENGTH_BYTES[name]
    return lambda walk: walk.skip(walk.length(length_bytes, is_optional=is_optional))

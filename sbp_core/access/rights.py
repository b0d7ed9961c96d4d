"""The rights of identities on streams and consumer groups.

A grant gives a subject a right on the streams, or for GROUP on the groups, whose names match its
pattern: a name, a prefix such as `orders-*`, or `*`. A stream without a name matches `*` only.
Administrators may do everything; the settings of the servers name them, and no grant does.
"""

from __future__ import annotations

import enum
import re
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from sbp_core import limits
from sbp_core.access.identity import canonical_subject
from sbp_core.errors import invalid

K = TypeVar("K", bound=Hashable)

SUBJECT_LENGTH_MAX: Final = 512
"""Characters of a subject that has grants."""
GRANTS_MAX: Final = 10_000
"""Grants of a cluster."""
LEASE_MS: Final = 60_000
"""How long a server may decide by the rights that the placement driver told it."""
CLAIM_MS: Final = 3_600_000
"""How long a server may rely on that a producer belongs to who stages as it."""
_ANY: Final = "*"
_STREAM_NAME: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{limits.STREAM_NAME_LENGTH_MAX}}}")


def is_stream_name(name: str) -> bool:
    """Whether a text can name a stream: one of digits only would be mistaken for an id."""
    is_fit = _STREAM_NAME.fullmatch(name) is not None
    return is_fit and name not in {".", ".."} and not name.isdigit()


class Right(enum.StrEnum):
    """A right. Each one on streams includes reading their metadata."""

    READ = "read"
    """Read records and offsets."""
    APPEND = "append"
    """Append records, and commit transactions of them."""
    MANAGE = "manage"
    """Create, change, trim, seal and delete streams, and register schemas."""
    GROUP = "group"
    """Read and commit the cursors of a consumer group."""
    ADMIN = "admin"
    """Everything, also what concerns the cluster. This right cannot be granted."""


ON_STREAMS: Final = frozenset({Right.READ, Right.APPEND, Right.MANAGE})
GRANTABLE: Final = (*sorted(ON_STREAMS), Right.GROUP)


@dataclass(frozen=True, slots=True, order=True)
class Grant:
    """A right of a subject on the streams, or groups, whose names match the pattern."""

    subject: str
    right: Right
    pattern: str


class SubjectRights:
    """The rights that grants of one subject give, looked up by name."""

    def __init__(self, grants: Iterable[Grant]) -> None:
        grants = tuple(grants)
        self.anywhere = frozenset(each.right for each in grants)
        """The rights on some stream, or group."""
        self._by_name: dict[str, set[Right]] = {}
        self._by_prefix: dict[str, set[Right]] = {}
        for each in grants:
            is_prefix = each.pattern.endswith(_ANY)
            by_text = self._by_prefix if is_prefix else self._by_name
            by_text.setdefault(each.pattern.removesuffix(_ANY), set()).add(each.right)
        self._lengths = sorted({len(each) for each in self._by_prefix})

    def on(self, name: str | None) -> frozenset[Right]:
        """Return the rights on what has a name, or none."""
        if name is None:
            return frozenset(self._by_prefix.get("", ()))
        found = set(self._by_name.get(name, ()))
        for length in self._lengths:
            if length <= len(name):
                found |= self._by_prefix.get(name[:length], set())
        return frozenset(found)


def checked_subject(text: str) -> str:
    """Return the canonical form of a subject. Raises InvalidRequestError if it cannot have one."""
    try:
        subject = canonical_subject(text)
    except ValueError as error:
        raise invalid(f"{text[:SUBJECT_LENGTH_MAX]!a} is not a subject: {error}") from error
    if len(subject) > SUBJECT_LENGTH_MAX:
        raise invalid(
            f"a subject has {len(subject)} characters, and {SUBJECT_LENGTH_MAX} are the most that"
            " can have grants"
        )
    return subject


def checked_grant(subject: str, right: str, pattern: str) -> Grant:
    """Return a grant, to the canonical form of its subject.

    Raises InvalidRequestError for what cannot be granted.
    """
    subject = checked_subject(subject)
    if right not in GRANTABLE:
        remedy = "; name administrators in the settings of the servers" if right == "admin" else ""
        raise invalid(
            f"{right[:20]!a} cannot be granted: use {', '.join(GRANTABLE[:-1])} or"
            f" {GRANTABLE[-1]}{remedy}"
        )
    check_pattern(pattern)
    return Grant(subject, Right(right), pattern)


def check_pattern(pattern: str) -> None:
    """Raise InvalidRequestError unless a text is a pattern of names."""
    longest = limits.STREAM_NAME_LENGTH_MAX + len(_ANY)
    if not 1 <= len(pattern) <= longest or _ANY in pattern[:-1] or not pattern.isprintable():
        raise invalid(
            f"{pattern[:longest]!a} is not a pattern: use a name, the begin of names followed by *,"
            " or * for all"
        )


class Owners(Generic[K]):
    """Which subject used a key first. Of `count_max` keys, the least recently used is dropped."""

    def __init__(self, count_max: int = 100_000) -> None:
        self._count_max = count_max
        self._subjects: OrderedDict[K, str] = OrderedDict()

    def claim(self, key: K, subject: str) -> bool:
        """Give a key to a subject unless it has an owner; return whether it is the subject's."""
        owner = self._subjects.setdefault(key, subject)
        self._subjects.move_to_end(key)
        if len(self._subjects) > self._count_max:
            self._subjects.popitem(last=False)
        return owner == subject

"""The streams that members may be given: those that they subscribe to, and have the right to read.

The patterns are those of grants (sbp_core/access/rights.py), without regular expressions: matching
takes the same short time whatever a client sends.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Final

from sbp_core.access.rights import Grant, Right, SubjectRights
from sbp_core.group_limits import GROUP_STREAMS_MAX
from sbp_core.pd.groups.assigning import Eligible
from sbp_core.pd.groups.group import Member
from sbp_core.pd.metadata.store import MetadataStore
from sbp_core.pd.model import StreamRecord

_LOG: Final = logging.getLogger(__name__)
_ROWS: Final = 10_000
"""Streams that are read at a time."""


def all_streams(store: MetadataStore) -> list[StreamRecord]:
    """Return the streams of the cluster, by id."""
    found: list[StreamRecord] = []
    while part := store.streams_after(found[-1].stream_id if found else -1, _ROWS):
        found += part
    return found


def eligible_streams(
    store: MetadataStore,
    name: str,
    members: Iterable[Member],
    streams: Sequence[StreamRecord],
    *,
    streams_max: int = GROUP_STREAMS_MAX,
) -> Eligible:
    """Return which of all streams each member of a group may have.

    Those with the lowest ids count, `streams_max` of all members together.
    """
    members = tuple(members)
    wanted = {(each.patterns, each.subject) for each in members}
    readable = {each: _readable(store, *each, streams) for each in wanted}
    found = sorted(frozenset().union(*readable.values()))
    if len(found) > streams_max:
        _LOG.warning(
            "group streams left out group=%s streams=%d limit=%d: nobody reads those with the"
            " highest ids; use several groups",
            *(name, len(found), streams_max),
        )
        kept = frozenset(found[:streams_max])
        readable = {key: each & kept for key, each in readable.items()}
    return {each.member_id: readable[each.patterns, each.subject] for each in members}


def _readable(
    store: MetadataStore,
    patterns: Sequence[str],
    subject: str | None,
    streams: Iterable[StreamRecord],
) -> frozenset[int]:
    """Return the streams that match, and that the subject may read; None may read all."""
    wanted = SubjectRights(Grant("", Right.READ, each) for each in patterns)
    own = None if subject is None else SubjectRights(store.grants.of(subject))
    return frozenset(
        each.stream_id
        for each in streams
        if Right.READ in wanted.on(each.name) and (own is None or Right.READ in own.on(each.name))
    )

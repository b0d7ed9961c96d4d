"""The streams that members may be given: those that they subscribe to, and have the right to read.

The patterns are those of grants (sbp_core/access/rights.py), without regular expressions: matching
takes the same short time whatever a client sends.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from sbp_core import group_limits, limits
from sbp_core.access.rights import Grant, Right, SubjectRights
from sbp_core.pd.groups.assigning import Eligible
from sbp_core.pd.groups.group import Member
from sbp_core.pd.metadata.store import MetadataStore
from sbp_core.pd.model import StreamRecord

_LOG: Final = logging.getLogger(__name__)


def eligible_streams(store: MetadataStore, name: str, members: Iterable[Member]) -> Eligible:
    """Return the streams of each member of a group, GROUP_STREAMS_MAX of all together.

    Those with the lowest ids count.
    """
    members = tuple(members)
    wanted = {(each.patterns, each.subject) for each in members}
    streams = list(_all_streams(store)) if wanted else []
    readable = {each: _readable(store, *each, streams) for each in wanted}
    found = sorted(frozenset().union(*readable.values()))
    if len(found) > group_limits.GROUP_STREAMS_MAX:
        _LOG.warning(
            "group streams left out group=%s streams=%d limit=%d: nobody reads those with the"
            " highest ids; use several groups",
            *(name, len(found), group_limits.GROUP_STREAMS_MAX),
        )
        kept = frozenset(found[: group_limits.GROUP_STREAMS_MAX])
        readable = {key: each & kept for key, each in readable.items()}
    return {each.member_id: readable[each.patterns, each.subject] for each in members}


def _all_streams(store: MetadataStore) -> Iterator[StreamRecord]:
    stream_id = -1
    while found := store.streams_after(stream_id, limits.RESULTS_PER_FRAME):
        yield from found
        stream_id = found[-1].stream_id


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

"""Open ranges in which nothing can be appended, as too few of their servers are left."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from sbp_core import limits
from sbp_core.pd.metadata.store import MetadataStore
from sbp_core.pd.model import RangeRecord
from sbp_core.replication import answers_needed
from sbp_core.wording import listed


def find_halted(
    store: MetadataStore, live: Collection[int], full: Collection[int]
) -> list[RangeRecord]:
    """Return open ranges whose primary is down or full, or too many of whose servers are.

    By stream; FAIL_OVER_RANGES_MAX of each such server. Those that the placement driver continues
    at other servers are among them until it has.
    """
    unusable = (store.open_range_counts().keys() - {*live}) | {*full}
    found = {
        each.stream_id: each
        for server_id in unusable
        for each in store.open_ranges_on(server_id, limits.FAIL_OVER_RANGES_MAX)
        if each.server_ids[0] in unusable
        or len({*each.server_ids} - unusable) < max(1, each.ack_count)
    }
    return [found[each] for each in sorted(found)]


def halt_cause(
    halted: Sequence[RangeRecord],
    live: Collection[int],
    full: Collection[int],
    addresses: Mapping[int, str],
) -> str | None:
    """Return why nothing can be appended in these ranges, and the remedy; None without any."""
    members = {server_id for each in halted for server_id in each.server_ids}
    down, crowded = members - {*live}, members.intersection(full)
    parts = []
    if down:
        others = ""
        if all(_may_go_on(each, down | crowded) for each in halted):
            others = ", or start other range servers"
        parts.append(f"down: {_named(down, addresses)}; start them with their data{others}")
    if crowded:
        parts.append(f"without free disk space: {_named(crowded, addresses)}; free some")
    if any(len(each.server_ids) == 1 and each.server_ids[0] in down for each in halted):
        parts.append(
            "a stream with one replica cannot go on elsewhere: if its server is lost permanently,"
            " so are its records; delete it"
        )
    return ". ".join(parts) or None


def _may_go_on(halted: RangeRecord, unusable: Collection[int]) -> bool:
    """Whether enough servers of a range are left to decide where it ends."""
    count = len(halted.server_ids)
    usable_count = len({*halted.server_ids} - {*unusable})
    return count > 1 and usable_count >= answers_needed(count, halted.ack_count)


def _named(server_ids: Iterable[int], addresses: Mapping[int, str]) -> str:
    named = [f"{each} ({addresses.get(each, 'unknown address')})" for each in sorted(server_ids)]
    return f"range servers {listed(named)}"

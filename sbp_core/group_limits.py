"""The limits of consumer groups with members, and the group of the gateways."""

from __future__ import annotations

from typing import Final

from sbp_core import limits

GATEWAYS_GROUP: Final = "_kafka-gateways"
"""Its members are the gateways of Kafka's protocol, not consumers: lists of groups leave it out."""
GROUP_MEMBERS_MAX: Final = 100
"""Members of a consumer group."""
GROUP_STREAMS_MAX: Final = 10_000
"""Streams that the members of a group read together."""
GROUP_PATTERNS_MAX: Final = 1_000
"""Names and patterns of the streams that a member subscribes to."""
GROUP_ALL_PATTERNS_MAX: Final = 10_000
"""Names and patterns of the members of a group together: each assignment matches all of them."""
MEMBER_ID_LENGTH_MAX: Final = 64
"""Characters of the id of a member of a group."""
GROUP_SESSION_MS: Final = 10_000
GROUP_SESSION_MS_MIN: Final = 1_000
GROUP_SESSION_MS_MAX: Final = 1_800_000
"""Time without a heartbeat after which a member is expelled; it chooses within these limits."""
GROUP_HANDOVER_MS: Final = 300_000
GROUP_HANDOVER_MS_MAX: Final = 86_400_000
"""Time that a member has to give a stream up, before it is expelled."""
GROUP_SWEEP_MS: Final = 500
"""How often silent members and new streams are looked for."""
MEMBERS_MAX: Final = 10_000
"""Members of all consumer groups together."""

assert GROUP_SESSION_MS_MIN > GROUP_SWEEP_MS, "a member has time for a heartbeat between two looks"
assert GROUP_STREAMS_MAX <= limits.STREAMS_PER_REQUEST_MAX, "a member commits all of its streams"

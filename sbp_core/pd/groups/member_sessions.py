"""Which members are silent, or do not give streams up: times, in memory only.

Times are seconds of a clock that runs evenly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from sbp_core import group_limits as limits
from sbp_core.pd.groups.group import Member

_PAUSE_SECONDS: Final = 10 * limits.GROUP_SWEEP_MS / 1000
"""A longer time between two looks is one in which this process did not run."""


@dataclass(frozen=True, slots=True)
class _Session:
    member: Member
    heard_at: float
    asked: int | None
    asked_at: float
    """Since when it is to give up the streams that were revoked in generation `asked`."""


class Sessions:
    """When each member was heard last, and since when it is asked to give streams up."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, _Session]] = {}
        self._looked_at: float | None = None

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def groups(self) -> list[str]:
        """Return the groups that have members."""
        return list(self._groups)

    def hear(self, group: str, member: Member, asked: int | None, now: float) -> None:
        """Note a heartbeat, or a member that the last leader had.

        The answer asks it to give up streams that were revoked in generation `asked`, if any.
        """
        sessions = self._groups.setdefault(group, {})
        known = sessions.get(member.member_id)
        asked_at = now if known is None or known.asked != asked else known.asked_at
        sessions[member.member_id] = _Session(member, now, asked, asked_at)

    def forget(self, group: str, member_id: str) -> None:
        """Forget a member that is no longer in its group."""
        sessions = self._groups.get(group, {})
        sessions.pop(member_id, None)
        if not sessions:
            self._groups.pop(group, None)

    def groups_overdue(self, now: float) -> list[str]:
        """Return the groups that have members to expel."""
        return [group for group in self._groups if self.overdue(group, now)]

    def overdue(self, group: str, now: float) -> dict[str, str]:
        """Return the members of a group to expel, and why.

        The time in which this process did not run, and heard nobody, does not count.
        """
        if self._looked_at is not None and now - self._looked_at > _PAUSE_SECONDS:
            for each in self._groups.values():
                for key, session in each.items():
                    each[key] = replace(session, heard_at=now, asked_at=now)
        self._looked_at = now
        sessions = self._groups.get(group, {})
        found = {key: _maybe_fault(each, now) for key, each in sessions.items()}
        return {key: fault for key, fault in found.items() if fault is not None}


def _maybe_fault(session: _Session, now: float) -> str | None:
    silent_ms = round(1000 * (now - session.heard_at))
    if silent_ms >= session.member.session_timeout_ms:
        return f"it was silent for {silent_ms} ms"
    asked_ms = round(1000 * (now - session.asked_at))
    if session.asked is None or asked_ms < session.member.handover_timeout_ms:
        return None
    return f"it was asked {asked_ms} ms ago to give streams up, and holds them"

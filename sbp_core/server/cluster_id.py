"""Servers and peers of different clusters are kept apart (SPEC "HEARTBEAT", extension)."""

from __future__ import annotations

from sbp_core.errors import InvalidRequestError, StatusCode
from sbp_core.wire.status import shown


def check_cluster(claimed: str | None, own: str) -> None:
    """Raise InvalidRequestError when a peer's HEARTBEAT claims another cluster than our `own`."""
    if claimed and claimed != own:
        raise InvalidRequestError(
            StatusCode.INVALID_REQUEST,
            f"this is cluster {own}, not {shown(claimed)} to which you belong; connect to the"
            " servers of that one, or bring its data directory back. Your data was not touched",
        )

"""Servers and peers of different clusters are kept apart (SPEC "HEARTBEAT", extension)."""

from __future__ import annotations

from sbp_core.errors import InvalidRequestError, StatusCode
from sbp_core.wire.status import shown


def check_cluster(claimed: str | None, own: str, *, is_required: bool = False) -> None:
    """Raise InvalidRequestError when a peer's HEARTBEAT claims another cluster than our `own`.

    Also for none where one `is_required`: of a server, which knows its cluster.
    """
    if is_required and not claimed:
        raise InvalidRequestError(
            StatusCode.INVALID_REQUEST,
            f"this is cluster {own}; the HEARTBEAT of a server must carry the id of its cluster",
        )
    if claimed and claimed != own:
        raise InvalidRequestError(
            StatusCode.INVALID_REQUEST,
            f"this is cluster {own}, not {shown(claimed)} to which you belong. Connect to the"
            " placement driver of that one, or, if this should be it, bring the right data"
            " directory back: that of the placement driver, or yours. Your data was not touched",
        )

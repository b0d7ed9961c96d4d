"""`detail` of PD_NOT_LEADER: the octets of a PlacementDriverCluster (SPEC "Error Codes Table")."""

from __future__ import annotations

from sbp_core.errors import HeaderError
from sbp_core.wire.headers import PlacementDriverCluster, decode_header, encode_header


def encode_cluster(cluster: PlacementDriverCluster) -> bytes:
    """Return the detail that tells a client who the placement drivers are, and which one leads."""
    return encode_header(cluster)


def maybe_cluster(detail: bytes) -> PlacementDriverCluster | None:
    """Return the cluster that `detail` carries; None when it is empty or no such table."""
    try:
        return decode_header(PlacementDriverCluster, detail)
    except HeaderError:
        return None

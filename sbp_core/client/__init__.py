"""The client, for asyncio, and its blocking facade."""

from sbp_core.access.credentials import Credentials
from sbp_core.access.rights import Grant, Right
from sbp_core.client.async_client import AsyncClient
from sbp_core.client.blocking_client import Appender, Client, newest_schemas
from sbp_core.client.cluster_info import ClusterInfo, PlacementDriverInfo, RangeServerInfo
from sbp_core.client.connecting import CallTiming, Connecting, parse_endpoint, parse_endpoints
from sbp_core.client.operations.appending import AsyncAppender
from sbp_core.client.operations.calls import RetryPolicy
from sbp_core.client.operations.numbering import Transaction, Writer
from sbp_core.client.operations.watching import BoundsView
from sbp_core.client.types import (
    EARLIEST,
    LATEST,
    NO_CURSOR,
    AppendItem,
    AppendOutcome,
    CursorInfo,
    FetchItem,
    FetchOutcome,
    GroupDescription,
    GroupInfo,
    MemberInfo,
    Membership,
    MetadataChanges,
    RangeInfo,
    Reach,
    ReceivedBatches,
    SchemaVersion,
    StoreCommit,
    StreamBounds,
    StreamInfo,
    StreamSpec,
    StreamUpdate,
    TxnDecision,
    TxnInfo,
    TxnLoss,
    TxnPart,
    UnavailableRange,
)
from sbp_core.session.negotiation import RequestedFeatures
from sbp_core.tls import Tls
from sbp_core.wire.txn_id import is_producer, one_shot_producer, original_of, txn_id_of

__all__ = [
    "EARLIEST",
    "LATEST",
    "NO_CURSOR",
    "AppendItem",
    "AppendOutcome",
    "Appender",
    "AsyncAppender",
    "AsyncClient",
    "BoundsView",
    "CallTiming",
    "Client",
    "ClusterInfo",
    "Connecting",
    "Credentials",
    "CursorInfo",
    "FetchItem",
    "FetchOutcome",
    "Grant",
    "GroupDescription",
    "GroupInfo",
    "MemberInfo",
    "Membership",
    "MetadataChanges",
    "PlacementDriverInfo",
    "RangeInfo",
    "RangeServerInfo",
    "Reach",
    "ReceivedBatches",
    "RequestedFeatures",
    "RetryPolicy",
    "Right",
    "SchemaVersion",
    "StoreCommit",
    "StreamBounds",
    "StreamInfo",
    "StreamSpec",
    "StreamUpdate",
    "Tls",
    "Transaction",
    "TxnDecision",
    "TxnInfo",
    "TxnLoss",
    "TxnPart",
    "UnavailableRange",
    "Writer",
    "is_producer",
    "newest_schemas",
    "one_shot_producer",
    "original_of",
    "parse_endpoint",
    "parse_endpoints",
    "txn_id_of",
]

"""The client: blocking and asyncio, over programs that are written once."""

from sbp_core.client.aio import AsyncClient
from sbp_core.client.appends.appending import Appender, AsyncAppender
from sbp_core.client.appends.numbering import Transaction, Writer
from sbp_core.client.blocking import Client
from sbp_core.client.connecting import CallTiming, Connecting, parse_endpoint
from sbp_core.client.programs.calls import RetryPolicy
from sbp_core.client.programs.watching import BoundsView
from sbp_core.client.types import (
    EARLIEST,
    LATEST,
    NO_CURSOR,
    AppendItem,
    AppendOutcome,
    AwayRange,
    Batches,
    CursorInfo,
    FetchItem,
    FetchOutcome,
    GroupInfo,
    PlacementDriverInfo,
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
)
from sbp_core.session.negotiation import Wishes
from sbp_core.wire.dialect import Dialect
from sbp_core.wire.txn_id import is_producer, one_shot_producer, txn_id_of

__all__ = [
    "EARLIEST",
    "LATEST",
    "NO_CURSOR",
    "AppendItem",
    "AppendOutcome",
    "Appender",
    "AsyncAppender",
    "AsyncClient",
    "AwayRange",
    "Batches",
    "BoundsView",
    "CallTiming",
    "Client",
    "Connecting",
    "CursorInfo",
    "Dialect",
    "FetchItem",
    "FetchOutcome",
    "GroupInfo",
    "PlacementDriverInfo",
    "RangeInfo",
    "Reach",
    "ReceivedBatches",
    "RetryPolicy",
    "SchemaVersion",
    "StoreCommit",
    "StreamBounds",
    "StreamInfo",
    "StreamSpec",
    "StreamUpdate",
    "Transaction",
    "TxnDecision",
    "TxnInfo",
    "TxnLoss",
    "TxnPart",
    "Wishes",
    "Writer",
    "is_producer",
    "one_shot_producer",
    "parse_endpoint",
    "txn_id_of",
]

"""The client: blocking and asyncio, over programs that are written once."""

from sbp_core.client.aio import AsyncClient
from sbp_core.client.blocking import Client
from sbp_core.client.endpoint import parse_endpoint
from sbp_core.client.retry import RetryPolicy
from sbp_core.client.types import (
    EARLIEST,
    LATEST,
    AppendItem,
    AppendOutcome,
    FetchItem,
    FetchOutcome,
    RangeInfo,
    StreamBounds,
    StreamInfo,
    StreamSpec,
    StreamUpdate,
)

__all__ = [
    "EARLIEST",
    "LATEST",
    "AppendItem",
    "AppendOutcome",
    "AsyncClient",
    "Client",
    "FetchItem",
    "FetchOutcome",
    "RangeInfo",
    "RetryPolicy",
    "StreamBounds",
    "StreamInfo",
    "StreamSpec",
    "StreamUpdate",
    "parse_endpoint",
]

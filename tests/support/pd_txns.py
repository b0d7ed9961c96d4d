"""Transactions at a placement driver whose range server is scripted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from scripted_peer import Exchange, ScriptedPeer, status

from sbp_core.errors import StatusCode
from sbp_core.wire.headers import (
    CommitTxnRequest,
    DescribeTxnsRequest,
    EndTxnResponse,
    EndTxnResult,
    Feature,
    HeartbeatResponse,
    Status,
    SyncRangesResponse,
    TxnDescription,
    TxnPart,
)
from sbp_core.wire.opcodes import Opcode

DIGEST = b"12345678"


def range_server() -> ScriptedPeer:
    """A server that knows transactions."""
    made = ScriptedPeer()
    accepted = HeartbeatResponse(features=(Feature("transactions"),))
    made.script(Opcode.HEARTBEAT, lambda exchange: exchange.answer(accepted))
    made.script(Opcode.SYNC_RANGES, lambda exchange: exchange.answer(SyncRangesResponse()))
    return made


def end(**codes: StatusCode) -> Callable[[Exchange], None]:
    """A handler: END_TXN is done, but for the items `s<stream id>`."""

    def handle(exchange: Exchange) -> None:
        results = []
        for info in exchange.header.end_requests:
            code = codes.get(f"s{info.stream_id}", StatusCode.NONE)
            said = Status() if code is StatusCode.NONE else status(code)
            results.append(EndTxnResult(info.stream_id, info.request_index, 0, 5, said))
        exchange.answer(EndTxnResponse(end_responses=tuple(reversed(results)), status=Status()))

    return handle


def part(txn_id: str, stream_id: int, range_index: int = 0, count: int = 5) -> TxnPart:
    """Return a part of a transaction: the records it staged in a range."""
    return TxnPart(txn_id, stream_id, count, range_index)


async def commit(cluster, batch_number: int, *parts: TxnPart, timeout_ms: int = 20_000) -> Any:
    """Commit a batch of the producer p; return the answer."""
    request = CommitTxnRequest(timeout_ms, "p", batch_number, parts, 5, DIGEST, commit=True)
    (answer,) = await cluster.client.ask(Opcode.COMMIT_TXN, request)
    return answer


async def describe(cluster, producer: str | None = None) -> list[TxnDescription]:
    """Return the decided transactions of a producer, or of all producers."""
    answers = await cluster.client.ask(Opcode.DESCRIBE_TXNS, DescribeTxnsRequest(0, producer))
    return [txn for answer in answers for txn in answer.txns]


async def becomes(cluster, *states: str) -> None:
    """Wait until the decisions are in these states, in their order."""
    async with asyncio.timeout(30):
        while True:
            if [txn.state for txn in await describe(cluster)] == list(states):
                return
            await asyncio.sleep(0.01)


async def seen(peer: ScriptedPeer, count: int) -> None:
    """Wait until the server was asked so often to end transactions."""
    async with asyncio.timeout(30):
        while True:
            if len(peer.seen(Opcode.END_TXN)) >= count:
                return
            await asyncio.sleep(0.01)


def asked(peer: ScriptedPeer) -> list[list[tuple[Any, ...]]]:
    """Return the transactions that the server was asked to end, by frame."""
    return [
        [
            (info.stream_id, info.range_index, info.txn_ids, info.commit, info.record_count)
            for info in exchange.header.end_requests
        ]
        for exchange in peer.seen(Opcode.END_TXN)
    ]

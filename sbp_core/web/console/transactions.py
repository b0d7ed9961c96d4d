"""Transactions: which are open or stuck, what to do about them, and giving one up."""

from __future__ import annotations

import time
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sbp_core.client import AsyncClient, TxnInfo
from sbp_core.client.txn_remarks import ADVICE, loss_lines
from sbp_core.errors import NotFoundError
from sbp_core.web.console.actions import Question, act, ask
from sbp_core.web.console.site import Site
from sbp_core.web.console.submissions import Done, check_typed
from sbp_core.web.console.transactions_view import (
    describe_loss,
    group_by_state,
    maybe_stuck,
    shown_streams,
)

_PATH: Final = "/transactions"
_PROBE_MS: Final = 1_000
"""A range server that does not answer a PING for this long is left out."""
_EFFECT: Final = (
    "The parts that are incomplete at their range servers are dropped; the others are published."
)


async def show(request: Request) -> Response:
    """Show the transactions by state; those that are over on demand."""
    site, query = Site.of(request), request.query_params
    client = await site.client(request)
    down = await _find_down(client)
    txns = await client.describe_txns(query.get("producer", "").strip() or None, spared=down)
    streams = {each.stream_id: each for each in await client.find_streams(shown_streams(txns))}
    now_ms = time.time_ns() // 1_000_000
    groups = group_by_state(txns, streams, now_ms, is_open_only="all" not in query)
    return site.page(request, "transactions.html", "Transactions", groups=groups, down=sorted(down))


async def ask_give_up(request: Request) -> Response:
    """Show what giving up a stuck batch can lose."""
    producer, number = request.path_params["producer"], request.path_params["batch"]
    client = await Site.of(request).client(request)
    txn = await _stuck(client, producer, number)
    streams = {each.stream_id: each for each in await client.find_streams(shown_streams([txn]))}
    question = Question(
        title=f"Give up batch {number} of {producer}?",
        facts=[ADVICE["stuck"], _EFFECT, *describe_loss(txn, streams)],
        button="Give it up",
        back=_PATH,
        typed=producer,
        is_destructive=True,
    )
    return ask(request, question)


async def give_up(request: Request) -> Response:
    """Give up what is lost of a batch."""
    producer, number = request.path_params["producer"], request.path_params["batch"]
    site = Site.of(request)
    fields = await site.form(request)
    check_typed(producer, fields.get("typed", ""))
    client = await site.client(request)

    async def action() -> Done:
        loss = await client.give_up_txn(producer, number)
        return Done(_PATH, tuple(loss_lines(producer, number, loss)))

    return await act(request, fields, action)


async def _find_down(client: AsyncClient) -> set[str]:
    """Return the range servers that do not answer, whose staged batches are not known."""
    servers = await client.range_servers()
    endpoints = [each.endpoint for each in servers if not each.is_retired]
    return set(await client.probe(endpoints, timeout_ms=_PROBE_MS))


async def _stuck(client: AsyncClient, producer: str, number: int) -> TxnInfo:
    """Return a batch that is stuck. Raises NotFoundError if it is not, or no longer."""
    down = await _find_down(client)
    txn = maybe_stuck(await client.describe_txns(producer, spared=down), number)
    if txn is None:
        raise NotFoundError.of(
            f"batch {number} of {producer} is not stuck: what can be published is not given up"
        )
    return txn


ROUTES: Final = (
    Route(_PATH, show, methods=["GET"]),
    Route(_PATH + "/{producer}/{batch:int}/give-up", ask_give_up, methods=["GET"]),
    Route(_PATH + "/{producer}/{batch:int}/give-up", give_up, methods=["POST"]),
)

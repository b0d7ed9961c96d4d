"""The rights that operations need: the table, and the one place where it is applied.

`RULES` says of each operation which right it needs, and where its request names the streams. A
`Guard` wraps the handlers of a server: it takes the items that are refused out of a request before
its handler sees them, and puts their results into the answer. An `Authority` knows the rights: the
placement driver has them in its store, range servers ask it. Without an identity no rights are
checked: either the server asks for none, or it has refused the request before.
"""

from __future__ import annotations

import enum
import logging
import shlex
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from sbp_core.access.identity import Identity
from sbp_core.access.rights import ON_STREAMS, SUBJECT_LENGTH_MAX, Right
from sbp_core.errors import NotFoundError, PermissionDeniedError, SbpError
from sbp_core.server.answers import cut, responses_of
from sbp_core.server.dispatch import Answer, Handler, Response, ServerCall
from sbp_core.server.refused_items import Merger, narrow, refused_result
from sbp_core.server.request_checks import check_item_count
from sbp_core.server.trust import denied
from sbp_core.wire.headers import (
    REQUEST_TABLES,
    RESPONSE_TABLES,
    RESULT_FIELDS,
    ListRangesResponse,
    SealCause,
    SealRangesRequest,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import SUCCESS, shown

_LOG: Final = logging.getLogger(__name__)


class Caller(enum.Enum):
    """The callers of an operation that is not about certain streams."""

    ANYONE = "anyone with an identity"
    SERVER = "a server of the cluster"
    ADMIN = "an administrator"


class Results(enum.Enum):
    """How the results of an answer belong to the items of the request."""

    BY_POSITION = "one for each, in their order"
    BY_STREAM = "one or more for each, in their order; they name the stream"
    BY_INDEX = "they name the item, and come in any order"


@dataclass(frozen=True, slots=True)
class Rule:
    """An operation on streams: one of `rights` is needed on each.

    `items` are the fields of the request that name them. Without any item the results name streams,
    or groups, and those without rights are left out. If it `is_whole`, one refused item refuses the
    request; a right on some stream is needed in any case. If it is `of_group`, GROUP is needed on
    the group as well. If it is `of_deleted`, streams that the placement driver does not know any
    more are left to the handler.
    """

    rights: frozenset[Right]
    items: tuple[str, ...] = ()
    results: Results = Results.BY_POSITION
    is_whole: bool = False
    of_group: bool = False
    of_deleted: bool = False
    of_producer: bool = False


_READ: Final = frozenset({Right.READ})
_APPEND: Final = frozenset({Right.APPEND})
_MANAGE: Final = frozenset({Right.MANAGE})
_GROUP: Final = frozenset({Right.GROUP})

RULES: Final[Mapping[Opcode, Rule | Caller]] = {
    Opcode.PING: Caller.ANYONE,
    Opcode.GOAWAY: Caller.ANYONE,
    Opcode.HEARTBEAT: Caller.ANYONE,
    Opcode.ALLOCATE_ID: Caller.SERVER,
    Opcode.APPEND: Rule(_APPEND, ("append_requests",), Results.BY_INDEX),
    Opcode.FETCH: Rule(_READ, ("fetch_requests",), Results.BY_INDEX),
    Opcode.END_TXN: Caller.SERVER,
    Opcode.REPLICATE: Caller.SERVER,
    Opcode.READ_ENTRIES: Caller.SERVER,
    Opcode.LIST_RANGES: Rule(ON_STREAMS, ("range_owners",), Results.BY_STREAM),
    Opcode.SEAL_RANGE: Rule(_MANAGE, ("ranges",)),
    Opcode.SYNC_RANGES: Caller.SERVER,
    Opcode.CREATE_RANGE: Rule(_MANAGE, ("stream_range",), is_whole=True),
    Opcode.DESCRIBE_RANGE: Rule(ON_STREAMS, ("ranges",)),
    Opcode.LOOKUP_OFFSETS: Rule(_READ, ("lookup_requests",), Results.BY_INDEX),
    Opcode.CREATE_STREAMS: Rule(_MANAGE, ("streams",)),
    Opcode.DELETE_STREAMS: Rule(_MANAGE, ("streams",), of_deleted=True),
    Opcode.UPDATE_STREAMS: Rule(_MANAGE, ("streams",)),
    Opcode.DESCRIBE_STREAMS: Rule(ON_STREAMS, ("stream_ids", "names")),
    Opcode.TRIM_STREAMS: Rule(_MANAGE, ("trimmed_streams",)),
    Opcode.COMMIT_CURSORS: Rule(_READ, ("cursors",), of_group=True),
    Opcode.DESCRIBE_CURSORS: Rule(_GROUP, of_group=True),
    Opcode.JOIN_GROUP: Rule(_GROUP, of_group=True),
    Opcode.GROUP_HEARTBEAT: Rule(_GROUP, of_group=True),
    Opcode.LEAVE_GROUP: Rule(_GROUP, of_group=True),
    Opcode.DESCRIBE_GROUP: Rule(_GROUP, of_group=True),
    Opcode.REGISTER_SCHEMAS: Rule(_MANAGE, ("schemas",)),
    Opcode.DESCRIBE_SCHEMAS: Rule(ON_STREAMS, ("stream_ids",), Results.BY_STREAM),
    Opcode.REPORT_METRICS: Caller.SERVER,
    Opcode.DESCRIBE_PD_CLUSTER: Caller.ANYONE,
    Opcode.DESCRIBE_SERVERS: Caller.ADMIN,
    Opcode.DRAIN_SERVERS: Caller.ADMIN,
    Opcode.LIST_GRANTS: Caller.ADMIN,
    Opcode.CHANGE_GRANTS: Caller.ADMIN,
    Opcode.CHECK_RIGHTS: Caller.SERVER,
    Opcode.MOVE_RANGES: Caller.ADMIN,
    Opcode.TAKE_CUT: Caller.ADMIN,
    Opcode.RESTORE_METADATA: Caller.ADMIN,
    Opcode.COMMIT_TXN: Rule(_APPEND, ("parts", "staged"), is_whole=True),
    Opcode.DESCRIBE_TXNS: Rule(_APPEND, of_producer=True),
}
"""Every operation of the protocol."""


@dataclass(frozen=True, slots=True)
class Target:
    """A stream by its id, or -1; `names` are its known names, now or after the request.

    `item` of a request names it. Without id and names it is some stream; with the name None, all.
    """

    stream_id: int = -1
    names: tuple[str | None, ...] = ()
    item: object = None

    def __str__(self) -> str:
        name = self.names[0] if self.names else None
        if self.stream_id >= 0:
            return f"stream {self.stream_id}" + ("" if name is None else f" ({name})")
        if not self.names:
            return "any stream"
        return "all streams" if name is None else f"stream {name}"

    @property
    def pattern(self) -> str:
        """The pattern to grant a right on, for a shell; NAME if the caller may not know it."""
        return shlex.quote(self.names[0] or "*") if self.names else "NAME"


def lacking_right(
    identity: Identity, rights: frozenset[Right], target: Target
) -> PermissionDeniedError:
    """Return the error of an identity that has none of these rights.

    The message shows the name of a target: the caller has sent the name, or has another right on
    the stream.
    """
    subject = identity.subject
    subject = subject if len(subject) <= SUBJECT_LENGTH_MAX else shown(subject)
    if rights == ON_STREAMS:
        right, hint = "RIGHT", ", where RIGHT is read to consume, append to produce, or manage"
        lack = f"has no right on {target}, and an administrator gives one"
    else:
        (right,) = rights
        what = f"group {target.names[0]}" if right is Right.GROUP else str(target)
        lack, hint = f"lacks the right {right} on {what}; an administrator gives it", ""
    if not target.names:
        hint += f"; NAME is the name of {'a' if target.stream_id < 0 else 'that'} stream"
    return denied(
        f"{subject} {lack} by `sbp acl grant {shlex.quote(subject)} {right} {target.pattern}`{hint}"
        f"{identity.remark}"
    )


Judgement = Sequence[SbpError | None]
"""For each item the reason why it is refused, None for an accepted item."""


class Authority(ABC):
    """Knows the rights of identities."""

    def maybe_judge(self, call: ServerCall, rule: Rule, request: Any) -> Judgement | None:
        """Judge the items of a request; None if that needs a wait."""
        return None

    @abstractmethod
    async def judge(
        self, identity: Identity, rights: frozenset[Right], targets: Sequence[Target]
    ) -> Judgement:
        """Return why an identity that has none of these rights may not use a stream, or a group."""


class Guard:
    """Wraps the handlers of a server; `authority` knows the rights of identities."""

    def __init__(self, authority: Authority) -> None:
        self._authority = authority

    def wrap(self, handlers: Mapping[Opcode, Handler]) -> dict[Opcode, Handler]:
        """Return handlers that refuse what their caller may not do."""
        return {
            opcode: each
            if RULES[opcode] is Caller.ANYONE
            else partial(self._serve, RULES[opcode], each)
            for opcode, each in handlers.items()
        }

    async def _serve(self, rule: Rule | Caller, handler: Handler, call: ServerCall) -> Answer:
        if self._is_free(call, rule):
            return await handler(call)
        identity = _maybe_restricted(call)
        assert isinstance(rule, Rule)
        assert identity is not None
        call.judge_again = partial(self._judge_again, call, rule)
        request = _request_of(call)
        judgement = self._authority.maybe_judge(call, rule, request)
        if judgement is not None and not any(judgement):
            return await handler(call)
        if rule.of_producer:
            if request.producer is None:
                raise denied(f"all producers are for an administrator: name one{identity.remark}")
            return await handler(call)
        is_of_one_group = rule.of_group and request.group is not None
        if is_of_one_group:
            await self._check_group(identity, request.group)
        rights = _rights_for(rule, request)
        targets = _targets_in(rule, request)
        if rule.is_whole:  # also without items it has an effect, or with streams that do not exist
            targets.append(Target())
        if not targets:
            answer = await handler(call)
            if is_of_one_group:
                return answer
            return _revised(answer, partial(self._leave_out, identity, rights))
        if judgement is None:
            check_item_count(len(targets))  # the columns of `staged` may name more than items
            judgement = await self._authority.judge(identity, rights, targets)
        return await _serve_judged(rule, handler, call, request, judgement)

    def _is_free(self, call: ServerCall, rule: Rule | Caller) -> bool:
        """Whether nothing about the streams of a request has to be checked.

        Raises PermissionDeniedError if it is not for this caller, whatever they are.
        """
        identity = call.peer.standing.identity
        if identity is None or isinstance(rule, Rule):
            return _maybe_restricted(call) is None
        is_allowed = identity.is_server if rule is Caller.SERVER else identity.is_admin
        if not is_allowed:
            key = "servers" if rule is Caller.SERVER else "admins"
            raise denied(
                f"{call.opcode.name} is for {rule.value}, and {identity} is none: if it should be,"
                f" name it in {key} of [auth]{identity.remark}"
            )
        return True

    async def _judge_again(self, call: ServerCall, rule: Rule, ids: Sequence[int]) -> Judgement:
        """Return why a caller that was admitted may not use streams, by id, any longer."""
        identity = call.peer.standing.identity
        assert identity is not None, "nothing is judged without an identity"
        return await self._authority.judge(identity, rule.rights, list(map(Target, ids)))

    async def _check_group(self, identity: Identity, group: str) -> None:
        (refusal,) = await self._authority.judge(identity, _GROUP, [Target(names=(group,))])
        if refusal is not None:
            raise refusal

    async def _leave_out(
        self, identity: Identity, rights: frozenset[Right], header: Any, *, is_end: bool
    ) -> Sequence[object]:
        """Leave out of an answer what the caller has no rights on; raise if that is not known."""
        field = RESULT_FIELDS[type(header)]
        results = getattr(header, field)
        judgement = await self._authority.judge(identity, rights, list(map(_target_of, results)))
        for error in judgement:
            if error is not None and not isinstance(error, PermissionDeniedError | NotFoundError):
                raise error
        kept = tuple(each for each, error in zip(results, judgement, strict=True) if error is None)
        header = replace(header, **{field: kept})
        if isinstance(header, ListRangesResponse) and header.changed_streams:
            changed = list(map(Target, header.changed_streams))
            judgement = await self._authority.judge(identity, rights, changed)
            pairs = zip(header.changed_streams, judgement, strict=True)
            visible = [one for one, error in pairs if not isinstance(error, PermissionDeniedError)]
            header = replace(header, changed_streams=tuple(visible))
        return [header]


async def _serve_judged(
    rule: Rule, handler: Handler, call: ServerCall, request: Any, judgement: Judgement
) -> Answer:
    """Serve a request without its refused items, and put their results into the answer.

    They come first, or at their place. The handler gets no request from which all items were taken:
    without items some operations are about all streams.
    """
    refusals = {
        at: error
        for at, error in enumerate(judgement)
        if error is not None and not (rule.of_deleted and isinstance(error, NotFoundError))
    }
    if not refusals:
        return await handler(call)
    _LOG.warning(
        "request refused operation=%s peer=%s items=%d: %s",
        *(call.opcode.name, call.peer.name, len(refusals), next(iter(refusals.values()))),
    )
    if rule.is_whole:
        raise next(iter(refusals.values()))
    items = list(_items_in(rule, request))
    response = RESPONSE_TABLES[call.opcode]
    results = {at: refused_result(response, items[at], error) for at, error in refusals.items()}
    refused = [
        Response(response(**{RESULT_FIELDS[response]: tuple(part)}, status=SUCCESS), is_end=False)
        for part in cut(list(results.values()))
    ]
    if len(results) == len(items):
        refused[-1] = replace(refused[-1], is_end=True)
        return _all_of(refused)
    narrow(call, rule.items, request, results)
    answer = await handler(call)
    if rule.results is Results.BY_INDEX:
        return _all_of(refused, answer)
    merger = Merger(len(items), results, by_stream=rule.results is Results.BY_STREAM)

    async def revise(header: Any, *, is_end: bool) -> Sequence[object]:
        return merger.revise(header, is_end=is_end)

    return _revised(answer, revise)


async def _all_of(
    refused: Sequence[Response], answer: Answer | None = None
) -> AsyncGenerator[Response]:
    """Yield the results of refused items, then the answer to the others."""
    for each in refused:
        yield each
    if answer is not None:
        async with aclosing(responses_of(answer)) as responses:
            async for each in responses:
                yield each


async def _revised(
    answer: Answer, revise: Callable[..., Awaitable[Sequence[object]]]
) -> AsyncGenerator[Response]:
    """Yield an answer with the headers that `revise` returns for each: one at least."""
    async with aclosing(responses_of(answer)) as responses:
        async for each in responses:
            *before, header = await revise(each.header, is_end=each.is_end)
            for one in before:
                yield Response(one, is_end=False)
            each.header = header
            yield each


def _maybe_restricted(call: ServerCall) -> Identity | None:
    """Return the identity of a caller with limited rights; admins own what they stage."""
    identity = call.peer.standing.identity
    if identity is None or identity.is_server:
        return None
    return None if identity.is_admin and call.opcode is not Opcode.APPEND else identity


def _request_of(call: ServerCall) -> Any:
    """Return the request; its handler gets the same."""
    request: Any = call.decode(REQUEST_TABLES[call.opcode])
    call.narrow(request)
    return request


def _rights_for(rule: Rule, request: Any) -> frozenset[Right]:
    """Return the rights for a request: a primary that does not answer is reported by any client.

    The placement driver finds out whether that is so.
    """
    is_report = isinstance(request, SealRangesRequest) and request.cause == SealCause.PRIMARY_SILENT
    return ON_STREAMS if is_report else rule.rights


def _items_in(rule: Rule, request: Any) -> Iterator[Any]:
    for field in rule.items:
        value = getattr(request, field)
        if field == "staged":
            yield from dict.fromkeys(chain.from_iterable(each.stream_ids for each in value))
        else:
            yield from value if isinstance(value, tuple) else (value,)


def _targets_in(rule: Rule, request: Any) -> list[Target]:
    return [_target_of(each) for each in _items_in(rule, request)]


def stream_id_of(item: Any) -> int:
    """Return the stream that an item of a request names by its id, or in a range; else -1."""
    stream_id: int = item.stream_id
    if stream_id < 0:
        stream_range = getattr(item, "stream_range", None)
        if stream_range is not None:
            stream_id = stream_range.stream_id
    return stream_id


def _target_of(item: Any) -> Target:
    """Return the target of an item; an item that names no stream and no group is about all."""
    if isinstance(item, int):
        return Target(item)
    if isinstance(item, str):
        return Target(names=(item,))
    if not isinstance(item, Struct):
        return Target(names=(None,))
    stream_id = stream_id_of(item)
    name = getattr(item, "name", None) or getattr(item, "group", None)
    names = (name,) if stream_id < 0 or name is not None else ()
    return Target(stream_id, names, item)

"""The rights that operations need: the table, and the one place where it is applied.

`RULES` says of each operation which right it needs, and where its request names the streams. A
`Guard` wraps the handlers of a server: it takes the items that are refused out of a request before
its handler sees them, and puts their results into the answer. An `Authority` knows the rights: the
placement driver has them in its store, range servers ask it. Without an identity nothing is
checked: either the server asks for none, or it has refused the request before.
"""

from __future__ import annotations

import asyncio
import enum
import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, get_args, get_type_hints

from msgspec import Struct
from msgspec.structs import replace

from sbp_core import limits
from sbp_core.access.identity import Identity
from sbp_core.access.rights import ON_STREAMS, SUBJECT_LENGTH_MAX, Right
from sbp_core.errors import NotFoundError, PermissionDeniedError, SbpError, invalid
from sbp_core.server.answers import cut
from sbp_core.server.dispatch import Handler, Later, PromptHandler, Rest, ServerCall
from sbp_core.server.trust import denied
from sbp_core.wire.headers import (
    REQUEST_TABLES,
    RESPONSE_TABLES,
    RESULT_FIELDS,
    AppendRequest,
    SealCause,
    SealRangesRequest,
)
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import SUCCESS, shown, status_for


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
    Opcode.REGISTER_SCHEMAS: Rule(_MANAGE, ("schemas",)),
    Opcode.DESCRIBE_SCHEMAS: Rule(ON_STREAMS, ("stream_ids",), Results.BY_STREAM),
    Opcode.REPORT_METRICS: Caller.SERVER,
    Opcode.DESCRIBE_PD_CLUSTER: Caller.ANYONE,
    Opcode.DESCRIBE_SERVERS: Caller.ADMIN,
    Opcode.DRAIN_SERVERS: Caller.ADMIN,
    Opcode.LIST_GRANTS: Caller.ADMIN,
    Opcode.CHANGE_GRANTS: Caller.ADMIN,
    Opcode.CHECK_RIGHTS: Caller.SERVER,
    Opcode.COMMIT_TXN: Rule(_APPEND, ("parts",), is_whole=True),
    Opcode.DESCRIBE_TXNS: Caller.ADMIN,
}
"""Every operation of the protocol."""


@dataclass(frozen=True, slots=True)
class Target:
    """A stream by its id, or -1; `names` are those that it has, or is to have, as far as known.

    `item` of a request names it. Without id and names it stands for some stream, whichever it is;
    without id and with the name None, for all.
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


def lacking_right(subject: str, rights: frozenset[Right], target: Target) -> PermissionDeniedError:
    """Return the error of a subject that has none of these rights.

    The name of a target is shown: it is one that the caller has sent, or of a stream on which it
    has another right.
    """
    what = f"group {target.names[0]}" if rights == _GROUP else str(target)
    named = " or ".join(sorted(rights))
    (right,) = rights if len(rights) == 1 else (Right.READ,)
    where = f", with the name of stream {target.stream_id}" if target.pattern == "NAME" else ""
    subject = subject if len(subject) <= SUBJECT_LENGTH_MAX else shown(subject)
    return denied(
        f"{subject} lacks the right {named} on {what}; an administrator gives it by `sbp acl grant"
        f" {shlex.quote(subject)} {right} {target.pattern}`{where}"
    )


Judgement = Sequence[SbpError | None]
"""Why each of some items is refused, None for those that are not."""


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
    """Wraps the handlers of a server. `authority` knows the rights of identities."""

    def __init__(self, authority: Authority) -> None:
        self._authority = authority

    def wrap(self, handlers: Mapping[Opcode, Handler]) -> dict[Opcode, Handler]:
        """Return handlers that refuse what their caller may not do."""
        return {
            opcode: each if RULES[opcode] is Caller.ANYONE else self._wrap(RULES[opcode], each)
            for opcode, each in handlers.items()
        }

    def _wrap(self, rule: Rule | Caller, handler: Handler) -> Handler:
        if isinstance(handler, PromptHandler):
            return _Prompt(self, rule, handler)

        async def serve(call: ServerCall) -> None:
            if self.is_free(call, rule) or await self.admit(call, rule):
                await handler(call)

        return serve

    def is_free(self, call: ServerCall, rule: Rule | Caller) -> bool:
        """Whether nothing about the streams of a request has to be checked.

        Raises PermissionDeniedError if it is not for this caller, whatever they are.
        """
        identity = call.peer.standing.identity
        if identity is None:
            return True
        if isinstance(rule, Rule):
            return identity.is_admin or identity.is_server
        is_allowed = identity.is_server if rule is Caller.SERVER else identity.is_admin
        if not is_allowed:
            key = "servers" if rule is Caller.SERVER else "admins"
            raise denied(
                f"{call.opcode.name} is for {rule.value}, and {identity} is none: if it should be,"
                f" name it in {key} of [auth]"
            )
        return True

    def maybe_admit(self, call: ServerCall, rule: Rule) -> bool:
        """Whether it is known without a wait that nothing of a request is refused."""
        judgement = self._authority.maybe_judge(call, rule, _request_of(call))
        return judgement is not None and not any(judgement)

    async def admit(self, call: ServerCall, rule: Rule | Caller) -> bool:
        """Take out of a request what is refused; return whether anything is left to be served.

        Raises PermissionDeniedError for all of a request.
        """
        identity = call.peer.standing.identity
        assert identity is not None
        assert isinstance(rule, Rule)
        request = _request_of(call)
        if rule.of_group and request.group is not None:
            await self._check_group(identity, request.group)
        rights = _rights_for(rule, request)
        targets = _targets_in(rule, request)
        if rule.is_whole:  # also without items it has an effect, or with streams that do not exist
            targets.append(Target())
        if not targets:
            if not (rule.of_group and request.group is not None):
                call.revise = partial(self._leave_out, identity, rights)
            return True
        if len(targets) > limits.STREAMS_PER_REQUEST_MAX:
            raise invalid(
                f"the request has {len(targets)} items, and at most"
                f" {limits.STREAMS_PER_REQUEST_MAX} are accepted; split it"
            )
        judgement = self._authority.maybe_judge(call, rule, request)
        if judgement is None:
            judgement = await self._authority.judge(identity, rights, targets)
        refusals = {
            at: error
            for at, error in enumerate(judgement)
            if error is not None and not (rule.of_deleted and isinstance(error, NotFoundError))
        }
        if not refusals:
            return True
        if rule.is_whole:
            raise next(iter(refusals.values()))
        return await self._answer_refused(call, rule, request, refusals)

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
        return [replace(header, **{field: kept})]

    async def _answer_refused(
        self, call: ServerCall, rule: Rule, request: Any, refusals: Mapping[int, SbpError]
    ) -> bool:
        """Take refused items out; their results come first, or at their place in the answer.

        The handler gets no request from which all items were taken: without items some operations
        are about all streams.
        """
        items = list(_items_in(rule, request))
        response = RESPONSE_TABLES[call.opcode]
        results = {at: _refused(response, items[at], error) for at, error in refusals.items()}
        is_all = len(results) == len(items)
        if not is_all:
            if call.is_one_frame and rule.results is Results.BY_INDEX:
                raise next(
                    iter(refusals.values())
                )  # the handler may answer with a frame of its own
            narrow(call, rule, request, results)
            if rule.results is not Results.BY_INDEX:
                merger = Merger(len(items), results, by_stream=rule.results is Results.BY_STREAM)
                call.revise = merger.revise
                return True
        parts = cut(list(results.values()))
        for at, part in enumerate(parts):
            header = response(**{RESULT_FIELDS[response]: tuple(part)}, status=SUCCESS)
            await call.respond(header, is_end=is_all and at == len(parts) - 1)
        return not is_all


class _Prompt(PromptHandler):
    """Begins to serve at once what is allowed, if that is known."""

    def __init__(self, guard: Guard, rule: Rule | Caller, handler: PromptHandler) -> None:
        self._guard = guard
        self._rule = rule
        self._handler = handler

    def begin(self, call: ServerCall) -> Rest | Later | None:
        guard, rule = self._guard, self._rule
        if guard.is_free(call, rule):
            return self._handler.begin(call)
        assert isinstance(rule, Rule)
        if guard.maybe_admit(call, rule):
            return self._handler.begin(call)
        return partial(self._serve, call)

    async def _serve(self, call: ServerCall) -> None:
        if not await self._guard.admit(call, self._rule):
            return
        rest = self._handler.begin(call)
        if isinstance(rest, Later):
            await asyncio.wait([rest.ready])
            await call.respond(rest.make())
        elif rest is not None:
            await rest()


class Merger:
    """Puts the results of refused items at their places among those of the others.

    `refused` has the former by position, of `count` items. `by_stream`: an item may have several
    results, which name its stream.
    """

    def __init__(self, count: int, refused: Mapping[int, object], *, by_stream: bool) -> None:
        self._count = count
        self._refused = refused
        self._by_stream = by_stream
        self._at = 0
        self._last_stream: int | None = None

    def merge(self, results: Iterable[Any], *, is_end: bool) -> list[Any]:
        """Return the next results of the answer, given the next ones of the handler."""
        merged: list[Any] = []
        for each in results:
            if not (self._by_stream and each.stream_id == self._last_stream):
                self._add_refused(merged)
                self._at += 1
            merged.append(each)
            if self._by_stream:
                self._last_stream = each.stream_id
        if is_end:
            self._add_refused(merged)
        return merged

    async def revise(self, header: Any, *, is_end: bool) -> Sequence[object]:
        """Return the frames to send for one of the handler."""
        field = RESULT_FIELDS[type(header)]
        merged = self.merge(getattr(header, field), is_end=is_end)
        return [replace(header, **{field: tuple(part)}) for part in cut(merged) or ((),)]

    def _add_refused(self, merged: list[Any]) -> None:
        while self._at < self._count and self._at in self._refused:
            merged.append(self._refused[self._at])
            self._at += 1


def narrow(call: ServerCall, rule: Rule, request: Any, refused: Mapping[int, object]) -> None:
    """Let the handler see a request without the items that are refused, by position."""
    if call.opcode is Opcode.APPEND:
        call.payload = _kept_payload(request, call.payload, refused)
    position = 0
    kept: dict[str, tuple[Any, ...]] = {}
    for field in rule.items:
        of_field = getattr(request, field)
        numbered = enumerate(of_field, position)
        kept[field] = tuple(each for at, each in numbered if at not in refused)
        position += len(of_field)
    call.narrow(replace(request, **kept))


def _kept_payload(
    request: AppendRequest, payload: memoryview, refused: Mapping[int, object]
) -> memoryview:
    """Return the batches that are not refused. Raises InvalidRequestError as their handler does."""
    lengths = [each.batch_length for each in request.append_requests]
    if min(lengths) < 0 or sum(lengths) != len(payload):
        raise invalid(
            f"the batches take {sum(lengths)} bytes, the payload has {len(payload)}; nothing of"
            " this frame was appended",
        )
    kept = bytearray()
    end = 0
    for at, length in enumerate(lengths):
        begin, end = end, end + length
        if at not in refused:
            kept += payload[begin:end]
    return memoryview(kept)


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
        if isinstance(value, tuple):
            yield from value
        else:
            yield value


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
    """Return what an item is about; what names neither a stream nor a group is about all."""
    if isinstance(item, int):
        return Target(item)
    if isinstance(item, str):
        return Target(names=(item,))
    if not isinstance(item, Struct):
        return Target(names=(None,))
    stream_id = stream_id_of(item)
    name = getattr(item, "name", None) or getattr(item, "group", None)
    if stream_id < 0 or name is not None:
        return Target(stream_id, (name,), item)
    return Target(stream_id, item=item)


_RESULTS: Final[Mapping[type, type]] = {
    response: get_args(get_type_hints(response)[field])[0]
    for response, field in RESULT_FIELDS.items()
}
"""The table of a result of each response."""


def _refused(response: type, item: Any, error: SbpError) -> Any:
    """Return the result of a refused item."""
    table = _RESULTS[response]
    fields = set(table.__struct_fields__)  # type: ignore[attr-defined]
    values: dict[str, object] = {"status": status_for(error)}
    if "stream_id" in fields:
        values["stream_id"] = item if isinstance(item, int) else getattr(item, "stream_id", -1)
    if "request_index" in fields:
        values["request_index"] = item.request_index
    if "range_owner" in fields:
        values["range_owner"] = item
    return table(**values)

"""Refused items: they are taken out of a request, and their results put into its answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, get_args, get_type_hints

from msgspec.structs import replace

from sbp_core.errors import SbpError, invalid
from sbp_core.server.answers import cut
from sbp_core.server.dispatch import ServerCall
from sbp_core.wire.headers import RESULT_FIELDS, AppendRequest
from sbp_core.wire.opcodes import Opcode
from sbp_core.wire.status import status_for


class Merger:
    """Puts the results of refused items at their positions among the other results.

    `refused` maps positions, of `count` items, to results. `by_stream`: an item may have several
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

    def revise(self, header: Any, *, is_end: bool) -> Sequence[object]:
        """Return the headers to send for one of the handler."""
        field = RESULT_FIELDS[type(header)]
        merged = self.merge(getattr(header, field), is_end=is_end)
        return [replace(header, **{field: tuple(part)}) for part in cut(merged) or ((),)]

    def _add_refused(self, merged: list[Any]) -> None:
        while self._at < self._count and self._at in self._refused:
            merged.append(self._refused[self._at])
            self._at += 1


def narrow(
    call: ServerCall, fields: Iterable[str], request: Any, refused: Mapping[int, object]
) -> None:
    """Let the handler see a request without the items that are refused, by position.

    `fields` of the request have the items.
    """
    if call.opcode is Opcode.APPEND:
        call.payload = _kept_payload(request, call.payload, refused)
    position = 0
    kept: dict[str, tuple[Any, ...]] = {}
    for field in fields:
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


_RESULTS: Final[Mapping[type, type]] = {
    response: get_args(get_type_hints(response)[field])[0]
    for response, field in RESULT_FIELDS.items()
}
"""The table of a result of each response."""


def refused_result(response: type, item: Any, error: SbpError) -> Any:
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

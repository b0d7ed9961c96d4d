"""Batches of which a reader wants no row: their statistics prove it, so they are not sent or read.

A reader sends a filter for each version of the schema that it knows. A batch whose statistics show
that no row is within the bounds of its filter is answered by its head alone:

    stored     envelope | body
    skipped    envelope with the property `skipped`, the length of that body in decimal

So offsets stay contiguous, and the reader counts what it skips. A server need not skip anything:
readers apply their condition to the rows of all batches that come.
"""

from __future__ import annotations

from collections.abc import Sequence

from sbp_core import filter_limits
from sbp_core.errors import HeaderError, invalid
from sbp_core.records.encodings import ENCODINGS
from sbp_core.records.envelope import encode_head, read_head
from sbp_core.records.order_keys import maybe_upper_prefix
from sbp_core.records.statistics import ColumnBounds, may_match
from sbp_core.wire._generated import BatchFilter, KeyBounds

__all__ = ["BatchFilter", "batch_filter", "check_filters", "maybe_skipped"]


def batch_filter(fingerprint: str, bounds: Sequence[ColumnBounds]) -> BatchFilter:
    """Return the filter that asks for rows within all bounds, in batches of this schema.

    Long keys are shortened, and columns beyond BOUNDS_PER_FILTER_MAX are left out, so that more
    batches come rather than fewer.
    """
    size_max = filter_limits.KEY_BYTES_MAX
    found = []
    for each in bounds[: filter_limits.BOUNDS_PER_FILTER_MAX]:
        most = None if each.most is None else maybe_upper_prefix(each.most, size_max)
        found.append(
            KeyBounds(
                each.column,
                (each.least or b"")[:size_max],
                most or b"",
                most is not None,
                each.takes_null,
            )
        )
    return BatchFilter(fingerprint, tuple(found))


def check_filters(filters: Sequence[BatchFilter]) -> None:
    """Raise InvalidRequestError unless the filters of an item are within the limits."""
    if len(filters) > filter_limits.FILTERS_PER_ITEM_MAX:
        raise invalid(
            f"an item of a FETCH has {filter_limits.FILTERS_PER_ITEM_MAX} filters at most, got"
            f" {len(filters)}; send those of the newest schemas"
        )
    for each in filters:
        fault = _maybe_fault(each)
        if fault is not None:
            raise invalid(f"a filter of a FETCH for schema {each.schema!r:.100} {fault}")


def maybe_skipped(
    front: memoryview, size_bytes: int, filters: Sequence[BatchFilter], base_offset: int
) -> bytes | None:
    """Return the head that answers the batch of `size_bytes` which begins with `front`.

    It has this base offset. None if a row may be wanted, or no filter is for the batch: it is to be
    read. Raises RecordBatchError.
    """
    if size_bytes < filter_limits.SKIPPED_BATCH_BYTES_MIN:
        return None
    meta, _, body_start = read_head(front, 0)
    statistics = meta.statistics
    encoding = ENCODINGS.get(meta.encoding)
    if statistics is None or encoding is None or not encoding.is_typed:
        return None
    fitting = next((each for each in filters if each.schema == meta.schema_fingerprint), None)
    if fitting is None or may_match(statistics, list(map(_bounds, fitting.bounds))):
        return None
    skipped = meta._replace(body_bytes="0", skipped=str(size_bytes - body_start))
    try:
        return encode_head(skipped, base_offset)
    except HeaderError:  # there is no room for one more property
        return None


def _bounds(bounds: KeyBounds) -> ColumnBounds:
    most = bounds.most if bounds.has_most else None
    return ColumnBounds(bounds.column or "", bounds.least, most, bounds.takes_null)


def _maybe_fault(given: BatchFilter) -> str | None:
    """Return what is wrong with a filter, and what is expected; None if nothing is."""
    if not given.schema:
        return "names no schema; expected the fingerprint of the batches that it is for"
    if len(given.bounds) > filter_limits.BOUNDS_PER_FILTER_MAX:
        return (
            f"has bounds of {len(given.bounds)} columns; at most"
            f" {filter_limits.BOUNDS_PER_FILTER_MAX} are allowed"
        )
    for each in given.bounds:
        if not each.column:
            return "has bounds of a column without a name"
        size_bytes = max(len(each.least), len(each.most))
        if size_bytes > filter_limits.KEY_BYTES_MAX:
            return (
                f"has a key of {size_bytes} bytes for column {each.column!r:.100}; expected"
                f" {filter_limits.KEY_BYTES_MAX} at most, shortened so that the values stay within"
            )
    return None

"""Requests for batches."""

import pyarrow as pa
import pytest

from sbp_core import filter_limits, limits
from sbp_core.errors import InvalidRequestError
from sbp_core.rangeserver.fetching.batch_finder import Wanted, item_of
from sbp_core.records import StreamSchema, maybe_kept_columns
from sbp_core.wire.headers import FetchInfo, Projection


def test_a_projection_longer_than_any_schema_needs_is_refused():
    """Servers remember some projections, so long ones would take their memory."""
    size_bytes = filter_limits.PROJECTION_BYTES_MAX
    longest = Projection("s", bytes(size_bytes - 1), b"1", "k" * 32)
    assert item_of(FetchInfo(projections=(longest,))).selection.projections == (longest,)
    for nodes, buffers in ((size_bytes, 1), (0, 3_500_000)):
        longer = Projection("s", bytes(nodes), bytes(buffers), "k" * 32)
        with pytest.raises(InvalidRequestError, match=f"'s' has {nodes + buffers} bytes of bits"):
            item_of(FetchInfo(projections=(longest, longer)))


@pytest.mark.parametrize(
    ("is_selected", "batch_bytes", "found_bytes"),
    [(False, limits.MIB, limits.MIB), (True, limits.MIB, 4 * limits.MIB), (True, 237, limits.MIB)],
)
def test_more_is_looked_for_only_where_most_may_be_left_out(is_selected, batch_bytes, found_bytes):
    wanted = Wanted((1, 0), 0, 10**9, limits.MIB, is_selected=is_selected)
    count = found_bytes // batch_bytes
    assert not wanted.is_too_much(count, count * batch_bytes)
    assert wanted.is_too_much(count + 1, (count + 1) * batch_bytes)


def test_a_projection_of_the_largest_schema_is_taken():
    texts = [(f"t{at}", pa.string()) for at in range(limits.SCHEMA_FIELDS_MAX - 4)]
    schema = StreamSchema.of(pa.schema([*texts, ("m", pa.map_(pa.string(), pa.string()))]))
    kept = maybe_kept_columns(schema, pa.schema([schema.arrow.field("t0")]))
    item = item_of(FetchInfo(projections=(kept.projection,)))
    assert item.selection.projections == (kept.projection,)

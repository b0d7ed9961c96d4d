"""Whether the range that a move has opened is where it was to be."""

import pytest

from sbp_core.errors import NoRangeServerError
from sbp_core.pd.streams.seal_handlers import maybe_misplaced
from sbp_core.wire.headers import (
    RangeMove,
    RangeServer,
    ReplicaServer,
    SealRangesResult,
    StreamRange,
)
from sbp_core.wire.status import SUCCESS

WANTED = (2, 4, 1)


def _opened_on(server_ids: tuple[int, ...]) -> SealRangesResult:
    servers = tuple(ReplicaServer(RangeServer(each, f"h:{each}")) for each in server_ids)
    return SealRangesResult(StreamRange(7, 1, end_offset=-1, servers=servers), SUCCESS, 7)


@pytest.mark.parametrize("server_ids", [WANTED, (2, 1, 4)])
def test_the_order_of_the_secondaries_is_free(server_ids: tuple[int, ...]) -> None:
    assert maybe_misplaced(_opened_on(server_ids), RangeMove(7, -1, WANTED)) is None


@pytest.mark.parametrize("server_ids", [(4, 2, 1), (2, 1, 3), (2, 4)])
def test_a_range_that_another_request_opened_elsewhere_may_be_moved_again(
    server_ids: tuple[int, ...],
) -> None:
    error = maybe_misplaced(_opened_on(server_ids), RangeMove(7, -1, WANTED))
    assert isinstance(error, NoRangeServerError)
    assert error.retriable

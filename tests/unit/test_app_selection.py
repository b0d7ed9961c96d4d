"""The streams that names and patterns select."""

import pytest

from sbp_core.app.positions import Selection
from sbp_core.client import StreamInfo
from sbp_core.errors import ConfigurationError, NotFoundError

NAMES = ("orders", "orders-1", "audit", None)
STREAMS = [StreamInfo(index, name, 1, 0, 0) for index, name in enumerate(NAMES)]


@pytest.mark.parametrize(
    ("patterns", "selected"),
    [
        (["orders"], ["orders"]),
        (["orders*"], ["orders", "orders-1"]),
        (["orders-*", "audit"], ["orders-1", "audit"]),
        (["*"], ["orders", "orders-1", "audit"]),
        (["none*"], []),
    ],
)
def test_names_and_their_begins_select_streams(patterns, selected):
    assert [each.name for each in Selection.of(patterns).of_streams(STREAMS)] == selected


@pytest.mark.parametrize("patterns", [[], [""], ["a*b"], ["*a"]])
def test_other_patterns_are_refused(patterns):
    with pytest.raises(ConfigurationError, match=r"no stream|not a pattern"):
        Selection.of(patterns)


def test_all_names_that_are_missing_are_reported():
    with pytest.raises(NotFoundError, match="no stream bills, users; create it"):
        Selection.of(["users", "bills", "orders"]).of_streams(STREAMS)

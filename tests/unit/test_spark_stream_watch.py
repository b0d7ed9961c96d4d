"""A snapshot of the bounds of the streams."""

from sbp_core.client import StreamBounds
from sbp_spark.streaming.stream_watch import Snapshot, is_plausible


class CountedBounds(dict):
    """Bounds that count how often a caller iterates over all of them."""

    walk_count = 0

    def items(self):
        self.walk_count += 1
        return super().items()


def test_many_streams_are_compared_in_one_walk():
    bounds = CountedBounds({each: StreamBounds(each, 0, each) for each in range(100)})
    snapshot = Snapshot({}, bounds)
    assert is_plausible(snapshot, {each: each for each in range(100)})
    assert not is_plausible(snapshot, {each: each + 1 for each in range(100)})
    assert bounds.walk_count == 1

"""The share of the time that the loop of the admin endpoint works."""

from hypothesis import given
from hypothesis import strategies as st

from sbp_core.admin.pacing import Pace

SHARE, BURST = 0.05, 0.05


class Times:
    def __init__(self):
        self.used = self.now = 0.0

    def pace(self):
        return Pace(SHARE, BURST, used=lambda: self.used, now=lambda: self.now)


def test_a_request_after_a_rest_does_not_wait():
    times = Times()
    pace = times.pace()
    assert pace.pause_seconds() == 0
    for _ in range(3):
        times.used += 0.9 * BURST
        times.now += BURST
        assert pace.pause_seconds() == 0
        times.now += BURST / SHARE


@given(st.lists(st.tuples(st.floats(0.0, 0.2), st.floats(0.0, 1.0)), max_size=50))
def test_the_share_is_kept_whatever_arrives(steps):
    times = Times()
    pace = times.pace()
    pace.pause_seconds()
    for work, wait in steps:
        times.used += work
        times.now += work
        times.now += pace.pause_seconds()
        assert times.used <= BURST + SHARE * times.now + 1e-6
        times.now += wait

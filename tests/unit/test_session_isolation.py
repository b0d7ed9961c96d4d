"""Names of isolation classes."""

import pytest

from sbp_core import limits
from sbp_core.session.isolation import is_isolation_class


@pytest.mark.parametrize("name", ["a", "spark-batch_2.x", "A" * limits.ISOLATION_LENGTH_MAX])
def test_names(name):
    assert is_isolation_class(name)


@pytest.mark.parametrize(
    "name", ["", "*", "a b", "a\n", "\u00e9", "\u0661", "a" * (limits.ISOLATION_LENGTH_MAX + 1)]
)
def test_what_is_none(name):
    assert not is_isolation_class(name)

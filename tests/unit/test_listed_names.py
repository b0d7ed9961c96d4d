"""Errors name some of many things, and count the others."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sbp_core.app.positions import Selection
from sbp_core.client.operations.range_placement import check_errors, missing
from sbp_core.errors import NotFoundError, SbpError, SchemaError
from sbp_core.records.column_paths import find_column
from sbp_core.wording import listed

MANY = 10_000


def test_things_are_listed_up_to_a_number() -> None:
    assert listed([]) == ""
    assert listed(["a", "b"]) == "a, b"
    assert listed(range(20)) == ", ".join(map(str, range(20)))
    assert listed(range(21), "; ").endswith("; 18; 19; and 1 more")


def test_errors_about_many_things_stay_short() -> None:
    names = [f"stream-{number}" for number in range(MANY)]
    errors = dict.fromkeys(range(MANY), NotFoundError.of("it is missing"))
    raised: list[SbpError] = [missing(names)]
    with pytest.raises(NotFoundError) as caught:
        check_errors(errors)
    raised.append(caught.value)
    with pytest.raises(NotFoundError) as caught:
        Selection.of(names).of_streams([])
    raised.append(caught.value)
    with pytest.raises(SchemaError) as misfit:
        find_column(pa.schema([(name, pa.int64()) for name in names]), ["zebra"])
    raised.append(misfit.value)
    for error in raised:
        assert len(str(error)) < 1000
        assert f"and {MANY - 20} more" in str(error)

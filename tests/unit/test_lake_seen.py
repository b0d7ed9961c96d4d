"""Tables by patterns of streams' names; which streams have metrics; what a page waits for."""

from __future__ import annotations

import asyncio
from threading import Event
from types import SimpleNamespace
from typing import ClassVar

import pytest
from pyiceberg.exceptions import NoSuchTableError

from sbp_core.client import StreamInfo
from sbp_core.errors import ConfigurationError
from sbp_core.lake import metrics
from sbp_core.lake.table import TableState
from sbp_core.operating.cursor_lag import Lag
from sbp_core.settings.configuration import SERVE
from sbp_core.settings.lake_tables import TableRule, maybe_table
from sbp_core.web.console.tables import Tables
from tests.support.machines import parsed


def test_the_first_rule_that_matches_names_the_table():
    texts = ["orders-eu=legal.eu", "orders-*=sales.{stream}", "*=rest.x_{stream}"]
    rules = [*map(TableRule.parse, texts)]
    assert maybe_table(rules, "orders-eu") == "legal.eu"
    assert maybe_table(rules, "orders-us") == "sales.orders-us"
    assert maybe_table(rules, "orders") == "rest.x_orders"
    assert maybe_table(rules, None) is None
    assert maybe_table(rules[:2], "orders") is None


@pytest.mark.parametrize(
    "text",
    [
        *("orders", "orders=", "=a.b", "orders=table", "a*b=x.{stream}", "**=x.{stream}"),
        *("orders-*=sales.orders", "*=x.{other}", "a=b.c d"),
    ],
)
def test_what_is_no_rule_is_refused_with_the_key_of_the_file(text, tmp_path):
    with pytest.raises(ConfigurationError, match="is no rule"):
        TableRule.parse(text)
    path = tmp_path / "server.toml"
    path.write_text(f'[lake]\ntables = ["{text}"]\n')
    with pytest.raises(ConfigurationError, match=r"server.toml: tables in \[lake\]: .* no rule"):
        SERVE.load(parsed("serve", "--config", str(path)))


def landing(number, error=None):
    stream = StreamInfo(number, f"s{number}", 1, 0, 0)
    state = TableState(stream.label, "a.b", 5, gaps=((1, 3),), error=error)
    return SimpleNamespace(stream=stream, state=state, error_count=0)


def test_of_many_streams_those_that_fail_or_lag_most_have_series():
    landings = [landing(each, "no" if each == 7 else None) for each in range(1000)]
    lags = {each: Lag(each, 5, 0, lag_records=each, lost_records=4) for each in range(1000)}
    read = [*metrics.read(landings, lags)]
    found = {(each.metric.name, *each.labels): each.value for each in read}
    assert found["sbp_lake_streams", "all"] == 1000
    assert found["sbp_lake_streams", "failing"] == 1
    shown = {stream for name, stream in found if name == "sbp_lake_lag_records"}
    assert shown == {"s7", *(f"s{each}" for each in range(801, 1000))}
    assert found["sbp_lake_lost_records", "s7"] == 6
    assert ("sbp_lake_retention_seconds", "s7") not in found


class Catalog:
    """Answers once it is let."""

    properties: ClassVar = {}

    def __init__(self):
        self.may_answer = Event()
        self.question_count = 0

    def load_table(self, name):
        self.question_count += 1
        assert self.may_answer.wait(60)
        raise NoSuchTableError(name)


def test_a_catalog_that_hangs_is_asked_once_and_not_waited_for():
    catalog, stream = Catalog(), StreamInfo(1, "orders", 1, 0, 0)

    async def main():
        tables = Tables(catalog, answer_seconds=0.01)
        states = [await tables.maybe_state(stream, "a.b") for _ in range(3)]
        catalog.may_answer.set()
        while (state := await tables.maybe_state(stream, "a.b")).error:
            pass
        return states, state

    states, state = asyncio.run(main())
    assert {each.error for each in states} == {"the catalog has not answered in time"}
    assert catalog.question_count <= 2
    assert state == TableState("orders", "a.b")

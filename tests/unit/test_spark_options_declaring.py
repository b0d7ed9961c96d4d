"""An option is declared once: its checks, its value and its documentation follow from that."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import pytest

from sbp_core.errors import ConfigurationError
from sbp_spark.options.declaring import (
    COUNT,
    DURATION,
    FLAG,
    SIZE,
    Given,
    Only,
    OptionReader,
    at_most,
    option,
    options_of,
    reads,
)
from sbp_spark.options.sink import SINK_OPTIONS, parse_sink_options
from sbp_spark.options.source import SOURCE_OPTIONS, parse_source_options
from tests.support.spark import GOOD, faults

NIGHTS = option("nights", COUNT, 1).doc("How many nights.")


@dataclass(frozen=True)
class Inner:
    size: int = option("innerSize", SIZE, 16 * 2**20, kafka="kafka.size").field("Bytes of it.")
    is_quiet: bool = option(
        "quiet",
        FLAG,
        False,
        only=Only(True, "is given in a batch"),
        side="source",
    ).field("Whether it is quiet.")

    def check_options(self, reader):
        if self.is_quiet and reader.is_given("innerSize", "1k"):
            reader.add_fault("quiet", "is true", "raise innerSize")


@dataclass(frozen=True)
class Outer:
    hours: int = field(metadata=reads(lambda reader: 24 * reader.value(NIGHTS), NIGHTS))
    inner: Inner = field(default_factory=Inner, metadata=reads(Inner))
    other: str = "not an option"


def read(given, streaming=None, side=""):
    reader = OptionReader(given, options_of(Outer, side=side), streaming=streaming)
    found = reader.group(Outer)
    reader.check_faults("test")
    return found


def test_options_are_the_fields_in_order_of_all_groups():
    assert [each.name for each in options_of(Outer)] == ["nights", "innerSize", "quiet"]
    assert [each.name for each in options_of(Outer, side="sink")] == ["nights", "innerSize"]
    assert [each.name for each in options_of(Inner, Outer)] == ["innerSize", "quiet", "nights"]


def test_values_and_defaults_are_those_of_the_fields():
    assert read({}) == Outer(24, Inner())
    given = {"NIGHTS": " 2 ", "innersize": "1k", "quiet": "false"}
    assert read(given, streaming=True) == Outer(48, Inner(1024, False))


@pytest.mark.parametrize(
    ("given", "streaming", "told"),
    [
        ({"night": "1"}, None, "did you mean nights?"),
        ({"Kafka.Size": "1"}, None, "did you mean innerSize?"),
        ({"nights": "0"}, None, "nights is '0'; expected a whole number above 0"),
        ({"innerSize": ""}, None, "innerSize is empty"),
        ({"quiet": "true"}, False, "quiet is given in a batch; remove it"),
        ({"quiet": "true", "innerSize": "1K"}, True, "quiet is true; raise innerSize"),
    ],
)
def test_faults_follow_from_the_declaration(given, streaming, told):
    with pytest.raises(ConfigurationError, match=r"^1 fault in the options of the sbp test") as e:
        read(given, streaming)
    assert told in str(e.value)


def test_an_option_of_the_other_side_is_unknown_and_has_its_default():
    assert read({}, side="sink").inner.is_quiet is False
    with pytest.raises(ConfigurationError, match="'quiet' is not an option"):
        read({"quiet": "true"}, side="sink")


def test_the_documentation_follows_from_the_declaration():
    shown = {each.name: (each.shown_default, each.meaning) for each in options_of(Outer)}
    assert shown == {
        "nights": ("1", "How many nights."),
        "innerSize": ("16m", "Bytes of it."),
        "quiet": ("false", "Whether it is quiet. Streaming only."),
    }
    assert option("a", DURATION, 900_000, beside="b").doc("A.").shown_default == "15m (with b)"


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (SIZE, 1, "1"),
        (SIZE, 1025, "1025"),
        (SIZE, 1536 * 1024, "1536k"),
        (SIZE, 2**40, "1t"),
        (DURATION, 1, "1"),
        (DURATION, 1500, "1500"),
        (DURATION, 60_000, "1m"),
        (DURATION, 172_800_000, "2d"),
        (at_most(9, COUNT, "9"), 9, "9"),
    ],
)
def test_a_number_is_shown_as_it_may_be_given(kind, value, text):
    assert kind.show(value) == text
    assert kind.parse(Given("name", text, [])) == value


@pytest.mark.parametrize(
    "each", dict.fromkeys([*SOURCE_OPTIONS, *SINK_OPTIONS]), ids=lambda each: each.name
)
def test_the_documented_default_is_the_default_that_counts(each):
    if each.unset:
        return
    noted = []
    given = Given(each.name, each.shown_default.partition(" (")[0], noted)
    assert each.kind.parse(given) == each.default
    assert noted == []


def test_options_for_one_mode_only_are_refused_in_the_other():
    assert sum(each.only is not None for each in (*SOURCE_OPTIONS, *SINK_OPTIONS)) == 12
    for each in SOURCE_OPTIONS:
        lines = faults({**GOOD, each.name: ""}, streaming=False)
        told = any(re.match(rf"  - {each.name} is given in a batch read", line) for line in lines)
        assert told == each.meaning.endswith(" Streaming only.")
    for each in SINK_OPTIONS:
        for streaming, where, only in (
            (True, "a streaming write", " Batch only."),
            (False, "a batch write", " Streaming only."),
        ):
            with pytest.raises(ConfigurationError) as raised:
                parse_sink_options({each.name: ""}, streaming=streaming)
            told = f"  - {each.name} is given in {where}" in str(raised.value)
            assert told == each.meaning.endswith(only)


def test_a_start_that_is_wrong_is_no_start_to_compare_an_end_with():
    lines = faults({**GOOD, "startingTimestamp": "soon", "endingOffsets": "-5"}, streaming=None)
    assert [line.split()[1] for line in lines] == ["startingTimestamp"]
    assert parse_source_options({**GOOD, "endingOffsets": "-5"}, streaming=None).ending is not None

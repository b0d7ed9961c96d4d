"""How often a row is there afterwards, and what makes a write the same as an earlier one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from sbp_core.client import is_producer
from sbp_core.limits import PRODUCER_LENGTH_MAX
from sbp_spark.options.reading import INT64_MAX, OptionReader, shown

_PAIR: Final = ("txnAppId", "txnVersion")
_ONE_SHOT: Final = "once-"
"""How the names of producers begin that are soon forgotten: see `one_shot_producer`."""


class Delivery(Enum):
    """Values of the option `delivery`."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


class OnReplayMismatch(Enum):
    """Values of the option `onReplayMismatch`."""

    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class BatchKey:
    """What the first decision counts for: a batch of a producer."""

    producer: str
    batch_number: int

    def __str__(self) -> str:
        return f"batch {self.batch_number} of {self.producer}"


@dataclass(frozen=True, slots=True)
class DeliveryOptions:
    """What is promised of a write.

    `maybe_key` is the one that the user gave to a batch write, `is_truncating` whether what was in
    the streams before goes.
    """

    delivery: Delivery = Delivery.EXACTLY_ONCE
    on_replay_mismatch: OnReplayMismatch = OnReplayMismatch.WARN
    maybe_key: BatchKey | None = None
    is_truncating: bool = False


def read_delivery(reader: OptionReader, *, is_streaming: bool | None) -> DeliveryOptions:
    """Return what is promised; of a batch or of a query that runs, None where that is not known."""
    delivery = Delivery(_word(reader, "delivery", Delivery))
    on_mismatch = OnReplayMismatch(_word(reader, "onReplayMismatch", OnReplayMismatch))
    key = _maybe_key(reader)
    is_truncating = reader.flag("truncate", default=False)
    if is_streaming:
        for name in (*_PAIR, "truncate"):
            if reader.is_given(name):
                wrong = "is given in a streaming write, which numbers its batches itself"
                if name == "truncate":
                    wrong = "is given in a streaming write, which only ever appends"
                reader.add_fault(name, wrong, "it in a batch write only", "remove it")
    elif is_streaming is False and reader.is_given("onReplayMismatch") and key is None:
        wrong = "is given without txnAppId and txnVersion, so no write is a replay of another"
        reader.add_fault("onReplayMismatch", wrong, "it beside these", "give them, or remove it")
    if delivery is Delivery.AT_LEAST_ONCE:
        for name in (*_PAIR, "onReplayMismatch", "truncate"):
            if reader.is_given(name):
                wrong = "is given beside delivery=at-least-once, which decides nothing"
                reader.add_fault(name, wrong, "exactly-once", "remove one of them")
    elif is_truncating and key is not None:
        wrong = "is given beside txnAppId: if the write was done before, its own rows would go"
        reader.add_fault("truncate", wrong, "one of the two", "remove one of them")
    return DeliveryOptions(delivery, on_mismatch, key, is_truncating)


def _word(reader: OptionReader, name: str, words: type[Enum]) -> str:
    values = [each.value for each in words]
    return reader.choice(name, values, values[0])


def _maybe_key(reader: OptionReader) -> BatchKey | None:
    given = [name for name in _PAIR if reader.is_given(name)]
    if len(given) == 1:
        (other,) = set(_PAIR) - set(given)
        reader.add_fault(given[0], f"is given without {other}", "both or none", f"add {other}")
    app_id, version = (reader.maybe_text(name) for name in _PAIR)
    if app_id is not None and app_id.startswith(_ONE_SHOT):
        wrong = f"is {shown(app_id)}; names that begin with {_ONE_SHOT} are forgotten after a day"
        reader.add_fault("txnAppId", wrong, "another name", "correct it")
    if app_id is not None and not is_producer(app_id):
        expected = f"1 to {PRODUCER_LENGTH_MAX} of the characters A-Z a-z 0-9 . _ -"
        reader.add_fault("txnAppId", f"is {shown(app_id)}", expected, "correct it")
    if version is not None and not _is_version(version):
        expected = "a whole number from 0 on, larger with each write"
        reader.add_fault("txnVersion", f"is {shown(version)}", expected, "correct it")
    if app_id is None or version is None or not is_producer(app_id) or not _is_version(version):
        return None
    return BatchKey(app_id, int(version))


def _is_version(text: str) -> bool:
    return re.fullmatch(r"[0-9]{1,19}", text) is not None and int(text) <= INT64_MAX

"""The declaration of an option: one field of a frozen dataclass, from which the rest follows.

    records_max: int | None = option("maxRecordsPerTrigger", COUNT, None, unset="unlimited").field(
        "Most records of one micro-batch."
    )

The field is the whole declaration. From it follow the names that are known, with suggestions for
those that are not; the parsed value and its default; where the option is refused; and its row in
docs/reference/options.md. A value that takes several options is a field with
`reads(function, ...)`, and a dataclass inside another one `reads(Group)`. Contradictions are found
by `check_options`, a method of the group.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any, Final, Generic, NamedTuple, TypeVar

from sbp_core.errors import ConfigurationError
from sbp_core.wording import counted

INT64_MAX: Final = 2**63 - 1
_SHOWN_LENGTH_MAX: Final = 80

# As Spark's own settings spell them; a size without a unit is in bytes, a time in ms.
_BYTE_UNITS: Final = {
    unit: 1024**power
    for power, letter in enumerate(("", "k", "m", "g", "t"))
    for unit in (letter, f"{letter}b", f"{letter}ib")
    if unit != "ib"
}
TIME_UNITS: Final = {
    "": 1,
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}

_Value = TypeVar("_Value")
_Value_co = TypeVar("_Value_co", covariant=True)
_Default = TypeVar("_Default")
_Word = TypeVar("_Word", bound=Enum)


def shown(text: str) -> str:
    """Return a value as messages quote it, cut if it is long."""
    if len(text) > _SHOWN_LENGTH_MAX:
        return repr(text[:_SHOWN_LENGTH_MAX]) + "..."
    return repr(text)


class Given(NamedTuple):
    """The text that is given for an option; what is wrong with it is noted among the faults."""

    name: str
    text: str
    faults: list[str]

    def refuse(self, wrong: str, expected: str, remedy: str) -> None:
        """Add a fault; the reader raises all of them at once."""
        self.faults.append(f"{self.name} {wrong}; expected {expected}; {remedy}")


@dataclass(frozen=True, slots=True)
class Kind(Generic[_Value]):
    """How a text becomes a value, and how the documentation shows one.

    `parse` returns None after a fault, or what is right in spite of it.
    """

    parse: Callable[[Given], _Value | None]
    show: Callable[[_Value], str] = str


class Only(NamedTuple):
    """An option has a meaning only in a stream, or only in a batch: the fault in the other."""

    streaming: bool
    wrong: str
    expected: str
    remedy: str = "remove it"


@dataclass(frozen=True, slots=True, eq=False)
class Option(Generic[_Value_co]):
    """One option of the source or the sink, as `option` describes it."""

    name: str
    kind: Kind[Any]
    default: _Value_co
    unset: str
    beside: str
    only: Only | None
    side: str
    kafka: str
    text: str = ""

    @property
    def shown_default(self) -> str:
        """The default as the documentation shows it."""
        text = self.unset or self.kind.show(self.default)
        return f"{text} (with {self.beside})" if self.beside else text

    @property
    def meaning(self) -> str:
        """The text of the documentation."""
        if self.only is None:
            return self.text
        return f"{self.text} {'Streaming' if self.only.streaming else 'Batch'} only."

    def doc(self, text: str) -> Option[_Value_co]:
        """Return the option with its documentation, for a field that `reads` several of them."""
        return replace(self, text=text)

    def field(self, text: str) -> _Value_co:
        """Return the field of a group that has the value of this option, documented so."""
        documented = self.doc(text)
        read = reads(lambda reader: reader.value(documented), documented)
        return field(default=self.default, metadata=read)


def option(
    name: str,
    kind: Kind[_Value],
    default: _Default,
    *,
    unset: str = "",
    beside: str = "",
    only: Only | None = None,
    side: str = "",
    kafka: str = "",
) -> Option[_Value | _Default]:
    """Declare an option; `field` or `doc` add its documentation.

    `unset` is shown instead of the default, where that is no value to be given; `beside` names the
    option without which the default does not count. `side` is "source" or "sink" where both use
    the group, and only one of them has the option. `kafka` is what Spark's Kafka connector calls
    it, so that its name leads to ours.
    """
    return Option(name, kind, default, unset, beside, only, side, kafka)


def reads(read: Any, *parts: Option[Any] | type[Any]) -> dict[str, Any]:
    """Return the metadata of a field that is made of several options.

    `read` is the group, a dataclass, or a function of an OptionReader; `parts` are the options, or
    groups of options, that such a function reads.
    """
    if not isinstance(read, type):
        return {"read": read, "options": options_of(*parts)}
    return {"read": lambda reader: reader.group(read), "options": options_of(read)}


def options_of(*parts: Option[Any] | type[Any], side: str = "") -> tuple[Option[Any], ...]:
    """Return the options of groups, in the order of their fields: all, or those of a side."""
    found: list[Option[Any]] = []
    for part in parts:
        if isinstance(part, Option):
            found.append(part)
        else:
            found += [each for one in fields(part) for each in one.metadata.get("options", ())]
    return tuple(each for each in dict.fromkeys(found) if not side or each.side in {"", side})


def maybe_scaled(text: str, units: Mapping[str, int]) -> int | None:
    """Return a number above 0 times its unit, None if the text is none."""
    found = re.fullmatch(r"([0-9]{1,19}) ?([A-Za-z]*)", text)
    value = int(found[1]) * units.get(found[2].lower(), 0) if found else 0
    return value if 0 < value <= INT64_MAX else None


def _scaled(units: Mapping[str, int], expected: str) -> Kind[int]:
    def parse(given: Given) -> int | None:
        value = maybe_scaled(given.text, units)
        if value is None:
            given.refuse(f"is {shown(given.text)}", expected, "correct it, or leave it out")
        return value

    def show(value: int) -> str:
        whole = [each for each in units.items() if value % each[1] == 0]
        unit, factor = min(whole, key=lambda each: (-each[1], len(each[0])))
        return f"{value // factor}{unit}"

    return Kind(parse, show)


def whole(least: int, expected: str, remedy: str = "correct it") -> Kind[int]:
    """Return whole numbers that are not below a bound."""

    def parse(given: Given) -> int | None:
        if re.fullmatch(r"[0-9]{1,19}", given.text) and least <= int(given.text) <= INT64_MAX:
            return int(given.text)
        given.refuse(f"is {shown(given.text)}", expected, remedy)
        return None

    return Kind(parse)


TEXT: Final[Kind[str]] = Kind(lambda given: given.text)
COUNT: Final = whole(
    1, "a whole number above 0", "give such a number, or leave the option out for no limit"
)
SIZE: Final = _scaled(_BYTE_UNITS, "a size, such as 64m or 1g")
"""A number of bytes."""
DURATION: Final = _scaled(TIME_UNITS, "a time, such as 500ms, 30s, 15m or 1h")
"""A time in ms."""


def at_most(most: int, kind: Kind[int], expected: str, remedy: str = "give less") -> Kind[int]:
    """Return numbers of a kind that are not above a bound."""

    def parse(given: Given) -> int | None:
        value = kind.parse(given)
        if value is None or value <= most:
            return value
        given.refuse(f"is {value}", expected, remedy)
        return None

    return Kind(parse, kind.show)


def words(values: Mapping[str, _Value]) -> Kind[_Value]:
    """Return words, in any case, and what each means."""

    def parse(given: Given) -> _Value | None:
        if given.text.lower() not in values:
            remedy = "give one of them, or leave it out"
            given.refuse(f"is {shown(given.text)}", " or ".join(values), remedy)
        return values.get(given.text.lower())

    return Kind(parse, lambda value: next(word for word in values if values[word] == value))


def _parse_column_names(given: Given) -> tuple[str, ...] | None:
    names = tuple(name.strip() for name in given.text.split(","))
    if all(part for name in names for part in name.split(".")):
        return names
    expected = "names of columns with commas between them, such as id,place.city"
    given.refuse(f"is {shown(given.text)}", expected, "correct it, or leave it out")
    return None


COLUMN_NAMES: Final = Kind(_parse_column_names, ",".join)


def word(kind: type[_Word]) -> Kind[_Word]:
    """Return the values of an Enum as words."""
    return words({each.value: each for each in kind})


FLAG: Final = words({"true": True, "false": False})


def named(length_max: int) -> Kind[str]:
    """Return names of some characters, up to a length."""
    expected = f"1 to {length_max} of the characters A-Z a-z 0-9 . _ -"

    def parse(given: Given) -> str | None:
        if re.fullmatch(rf"[A-Za-z0-9._-]{{1,{length_max}}}", given.text):
            return given.text
        given.refuse(f"is {shown(given.text)}", expected, "correct it, or leave it out")
        return None

    return Kind(parse)


class OptionReader:
    """The options of one reader or writer, looked up without regard to case; collects faults.

    `streaming` is None where it is not known yet whether a batch or a stream is planned; then what
    only one of them refuses is accepted. `others` are the options of the other side, by its name.
    """

    def __init__(
        self,
        given: Mapping[str, str],
        known: tuple[Option[Any], ...],
        *,
        streaming: bool | None = None,
        ignored: frozenset[str] = frozenset(),
        others: tuple[str, tuple[Option[Any], ...]] = ("", ()),
    ) -> None:
        self.streaming = streaming
        self._others = others
        self._known = {each.name.lower(): each for each in known}
        self._values: dict[str, str] = {}
        self._faults: list[str] = []
        for key, value in sorted(given.items()):
            folded = key.lower()
            if folded in self._values:
                self.add_fault(
                    self._known[folded].name,
                    "is given more than once, spelled differently",
                    "one value (case does not matter)",
                    "keep one of them",
                )
            elif folded in self._known:
                self._values[folded] = value.strip()
            elif folded == "path":
                self.add_fault(
                    "path",
                    "has no meaning here",
                    "streams to be named by an option",
                    "call load(), start() or save() without a path",
                )
            elif folded not in ignored:
                self._add_unknown(key)

    def add_fault(self, name: str, wrong: str, expected: str, remedy: str) -> None:
        """Add a fault of an option; `check_faults` raises it."""
        Given(name, "", self._faults).refuse(wrong, expected, remedy)

    def is_given(self, name: str, word: str | None = None) -> bool:
        """Whether the option is there, whatever its value is, or with this word as its value."""
        text = self._values.get(name.lower())
        return text is not None and word in {None, text.lower()}

    def refuse_given(
        self, options: tuple[Option[Any], ...], wrong: str, expected: str, remedy: str
    ) -> None:
        """Note a fault for each of these options that is there."""
        for each in options:
            if self.is_given(each.name):
                self.add_fault(each.name, wrong, expected, remedy)

    def check_single(self, options: tuple[Option[Any], ...]) -> None:
        """Note a fault if more than one of these options is there."""
        names = [each.name for each in options]
        given = [name for name in names if self.is_given(name)]
        if len(given) > 1:
            wrong = f"is given beside {' and '.join(given[1:])}"
            self.add_fault(given[0], wrong, f"one of {', '.join(names)}", "keep one of them")

    def group(self, group: type[_Value]) -> _Value:
        """Return a dataclass with the values of its options; after a fault it has no meaning."""
        options: Any = group
        values = {
            each.name: each.metadata["read"](self)
            for each in fields(options)
            if "read" in each.metadata
        }
        read = group(**values)
        check: Callable[[OptionReader], None] | None = getattr(read, "check_options", None)
        if check is not None:
            check(self)
        return read

    def value(self, wanted: Option[_Value]) -> _Value:
        """Return an option's value; its default if it is absent, or after a fault."""
        text = self._values.get(wanted.name.lower())
        if text is None:
            return wanted.default
        value = None
        if text:
            value = wanted.kind.parse(Given(wanted.name, text, self._faults))
        else:
            self.add_fault(wanted.name, "is empty", "a value", "give one, or leave the option out")
        only = wanted.only
        if only is not None and self.streaming is (not only.streaming):
            self.add_fault(wanted.name, only.wrong, only.expected, only.remedy)
        return wanted.default if value is None else value

    def required(self, wanted: Option[_Value], expected: str, remedy: str) -> _Value:
        """Return the value of an option that has to be there, and cannot be empty."""
        text = self._values.get(wanted.name.lower())
        if text:
            return self.value(wanted)
        self.add_fault(wanted.name, "is missing" if text is None else "is empty", expected, remedy)
        return wanted.default

    def check_faults(self, side: str) -> None:
        """Raise ConfigurationError if there was any fault; the message lists all of them."""
        if self._faults:
            head = f"{counted(len(self._faults), 'fault')} in the options of the sbp {side}:"
            raise ConfigurationError("\n".join([head, *(f"  - {line}" for line in self._faults)]))

    def _add_unknown(self, key: str) -> None:
        known = self._known.values()
        near = [each.name for each in known if each.kafka and each.kafka.lower() == key.lower()]
        side, others = self._others
        is_other = key.lower() in {each.name.lower() for each in others}
        wrong = f"is not an option here but one of the {side}" if is_other else "is not an option"
        cutoff = 0.9 if is_other else 0.6  # streams for stream, not columns for statsColumns
        near += [
            self._known[name].name
            for name in difflib.get_close_matches(key.lower(), self._known, n=1, cutoff=cutoff)
        ]
        if near or is_other:
            hint = f"did you mean {near[0]}?" if near else "remove it"
            self._faults.append(f"{shown(key)} {wrong}; {hint}")
        else:
            expected = "one of " + ", ".join(each.name for each in known)
            self.add_fault(shown(key), wrong, expected, "remove it")

"""The declaration of an option: one field of a frozen dataclass, from which the rest follows.

    records_max: int | None = option("maxRecordsPerTrigger", COUNT, None, unset="unlimited").field(
        "Most records of one micro-batch."
    )

The field is the whole declaration. From it follow the known names, and suggestions for unknown
names; the parsed value and its default; where the option is refused; and its row in
docs/reference/options.md. A value that takes several options is a field with
`reads(function, ...)`, and a dataclass inside another one `reads(Group)`. An option that is refused
without another option declares it (`needs`). Other contradictions are found by `check_options`, a
method of the group.

There are two kinds of faults: "NAME is VALUE; expected ..." for a value, and "NAME ...; REMEDY" for
an option that does not go with the others.
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
    """The text that is given for an option. `faults` collects what is wrong with it."""

    name: str
    text: str
    faults: list[str]

    def refuse(self, expected: str, wrong: str = "") -> None:
        """Add a fault, which shows the value unless `wrong` describes the fault."""
        self.faults.append(f"{self.name} {wrong or f'is {shown(self.text)}'}; expected {expected}")


@dataclass(frozen=True, slots=True)
class Kind(Generic[_Value]):
    """How a text becomes a value, and how the documentation shows a value.

    `parse` returns None after a fault, or the part of the value that is right.
    """

    parse: Callable[[Given], _Value | None]
    show: Callable[[_Value], str] = str


class Only(NamedTuple):
    """An option has a meaning only in a stream, or only in a batch: the fault in the other."""

    streaming: bool
    wrong: str
    remedy: str = "remove it"


@dataclass(frozen=True, slots=True, eq=False)
class Option(Generic[_Value_co]):
    """One option of the source or the sink, as `option` describes it."""

    name: str
    kind: Kind[Any]
    default: _Value_co
    unset: str
    beside: str
    needs: str
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
    needs: str = "",
    only: Only | None = None,
    side: str = "",
    kafka: str = "",
) -> Option[_Value | _Default]:
    """Declare an option; `field` or `doc` add its documentation.

    `unset` is shown instead of a default that users cannot write. `needs` is NAME or NAME=WORD:
    without that option this option is refused. `beside` is the same for the default only, as the
    documentation shows it. `side` is "source" or "sink" if both use the group and only one has the
    option. `kafka` is the name in Spark's Kafka connector: a user who gives it is told this name.
    """
    beside = beside or ("" if unset else needs)
    return Option(name, kind, default, unset, beside, needs, only, side, kafka)


def reads(read: Any, *parts: Option[Any] | type[Any]) -> dict[str, Any]:
    """Return the metadata of a field that is made of several options.

    `read` is the group, a dataclass, or a function of an OptionReader; `parts` are the options, or
    groups of options, that such a function reads.
    """
    if not isinstance(read, type):
        return {"read": read, "options": options_of(*parts)}
    return {"read": lambda reader: reader.group(read), "options": options_of(read)}


def options_of(*parts: Option[Any] | type[Any], side: str = "") -> tuple[Option[Any], ...]:
    """Return the options of groups, in the order of their fields: all, or one side's options."""
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
            given.refuse(expected)
        return value

    def show(value: int) -> str:
        whole = [each for each in units.items() if value % each[1] == 0]
        unit, factor = min(whole, key=lambda each: (-each[1], len(each[0])))
        return f"{value // factor}{unit}"

    return Kind(parse, show)


def whole(least: int, expected: str) -> Kind[int]:
    """Return whole numbers that are not below a bound."""

    def parse(given: Given) -> int | None:
        if re.fullmatch(r"[0-9]{1,19}", given.text) and least <= int(given.text) <= INT64_MAX:
            return int(given.text)
        given.refuse(expected)
        return None

    return Kind(parse)


TEXT: Final[Kind[str]] = Kind(lambda given: given.text)
COUNT: Final = whole(1, "a whole number above 0")
SIZE: Final = _scaled(_BYTE_UNITS, "a size, such as 64m or 1g")
"""A number of bytes."""
DURATION: Final = _scaled(TIME_UNITS, "a time, such as 500ms, 30s, 15m or 1h")
"""A time in ms."""


def at_most(most: int, kind: Kind[int], expected: str) -> Kind[int]:
    """Return numbers of a kind that are not above a bound."""

    def parse(given: Given) -> int | None:
        value = kind.parse(given)
        if value is None or value <= most:
            return value
        given.refuse(expected)
        return None

    return Kind(parse, kind.show)


def words(values: Mapping[str, _Value]) -> Kind[_Value]:
    """Return words, in any case, and what each means."""

    def parse(given: Given) -> _Value | None:
        if given.text.lower() not in values:
            given.refuse(" or ".join(values))
        return values.get(given.text.lower())

    return Kind(parse, lambda value: next(word for word in values if values[word] == value))


def _parse_column_names(given: Given) -> tuple[str, ...] | None:
    names = tuple(name.strip() for name in given.text.split(","))
    if all(part for name in names for part in name.split(".")):
        return names
    given.refuse("names of columns with commas between them, such as id,place.city")
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
        given.refuse(expected)
        return None

    return Kind(parse)


class OptionReader:
    """The options of one reader or writer, looked up without regard to case; collects faults.

    `streaming` is None if it is not known yet whether a batch or a stream is planned; then only
    faults in both are found. `others` are the name and the options of the other side.
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
                wrong = "is given more than once, and case does not matter"
                self.add_fault(self._known[folded].name, wrong, "keep one")
            elif folded in self._known:
                self._values[folded] = value.strip()
            elif folded == "path":
                remedy = "call load(), start() or save() without a path"
                self.add_fault("path", "has no meaning here", remedy)
            elif folded not in ignored:
                self._add_unknown(key)

    def add_fault(self, name: str, wrong: str, remedy: str) -> None:
        """Add a fault of an option; `check_faults` raises it."""
        self._faults.append(f"{name} {wrong}; {remedy}")

    def is_given(self, name: str, word: str | None = None) -> bool:
        """Whether the option is there, whatever its value is, or with this word as its value."""
        text = self._values.get(name.lower())
        return text is not None and word in {None, text.lower()}

    def refuse_given(self, options: tuple[Option[Any], ...], wrong: str) -> None:
        """Add a fault for each of these options that is there."""
        for each in options:
            if self.is_given(each.name):
                self.add_fault(each.name, wrong, "remove it")

    def check_single(self, options: tuple[Option[Any], ...]) -> None:
        """Add a fault if more than one of these options is there."""
        given = [each.name for each in options if self.is_given(each.name)]
        if len(given) > 1:
            self.add_fault(given[0], f"is given beside {' and '.join(given[1:])}", "keep one")

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
            self.add_fault(wanted.name, "is empty", "give a value, or leave the option out")
        only = wanted.only
        if only is not None and self.streaming is (not only.streaming):
            self.add_fault(wanted.name, only.wrong, only.remedy)
        elif wanted.needs and not self.is_given(*wanted.needs.split("=")):
            remedy = f"add {wanted.needs}, or remove {wanted.name}"
            self.add_fault(wanted.name, f"is given without {wanted.needs}", remedy)
        return wanted.default if value is None else value

    def required(self, wanted: Option[_Value], remedy: str) -> _Value:
        """Return the value of an option that has to be there, and cannot be empty."""
        text = self._values.get(wanted.name.lower())
        if text:
            return self.value(wanted)
        self.add_fault(wanted.name, "is missing" if text is None else "is empty", remedy)
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
        cutoff = 0.9 if is_other else 0.6  # streams for stream, not columns for statsColumns
        near += [
            self._known[name].name
            for name in difflib.get_close_matches(key.lower(), self._known, n=1, cutoff=cutoff)
        ]
        wrong = f"is an option of the {side} only" if is_other else "is not an option"
        if near:
            remedy = f"did you mean {near[0]}?"
        elif is_other:
            remedy = "remove it"
        else:
            remedy = f"expected one of {', '.join(each.name for each in known)}"
        self.add_fault(shown(key), wrong, remedy)

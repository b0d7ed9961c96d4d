"""Looking options up, and saying what is wrong with them: what, what was expected, the remedy."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from typing import Final

from sbp_core.errors import ConfigurationError
from sbp_spark.options.table import KAFKA_NAMES, OptionSpec

INT64_MAX: Final = 2**63 - 1
_SHOWN_LENGTH_MAX: Final = 80

_RENAMED: Final = {kafka.lower(): ours.lower() for kafka, ours in KAFKA_NAMES.items()}

# As Spark's own settings spell them; a size without a unit is in octets, a time in ms.
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


def shown(text: str) -> str:
    """Return a value as messages quote it; a long one is cut."""
    if len(text) > _SHOWN_LENGTH_MAX:
        return repr(text[:_SHOWN_LENGTH_MAX]) + "..."
    return repr(text)


def maybe_scaled(text: str, units: Mapping[str, int]) -> int | None:
    """Return a number above 0 times its unit, None if the text is none."""
    found = re.fullmatch(r"([0-9]{1,19}) ?([A-Za-z]*)", text)
    value = int(found[1]) * units.get(found[2].lower(), 0) if found else 0
    return value if 0 < value <= INT64_MAX else None


class OptionReader:
    """The options of one reader or writer, looked up without regard to case; collects faults."""

    def __init__(
        self, options: Mapping[str, str], specs: Collection[OptionSpec], ignored: frozenset[str]
    ) -> None:
        self._names = {spec.name.lower(): spec.name for spec in specs}
        self._values: dict[str, str] = {}
        self._faults: list[str] = []
        for key, value in sorted(options.items()):
            folded = key.lower()
            if folded in self._values:
                self.add_fault(
                    self._names[folded],
                    "is given more than once, spelled differently",
                    "one value (case does not matter)",
                    "keep one of them",
                )
            elif folded in self._names:
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
        """Note what is wrong with an option; `check_faults` raises it."""
        self._faults.append(f"{name} {wrong}; expected {expected}; {remedy}")

    def is_given(self, name: str) -> bool:
        """Whether the option is there, whatever its value is."""
        return name.lower() in self._values

    def maybe_text(self, name: str) -> str | None:
        """Return the option's value, None if it is absent; an empty value is a fault."""
        text = self._values.get(name.lower())
        if text == "":
            self.add_fault(name, "is empty", "a value", "give one, or leave the option out")
            return None
        return text

    def required_text(self, name: str, expected: str, remedy: str) -> str | None:
        """Return the option's value; None and a fault if it is absent or empty."""
        text = self._values.get(name.lower())
        if not text:
            wrong = "is missing" if text is None else "is empty"
            self.add_fault(name, wrong, expected, remedy)
            return None
        return text

    def maybe_count(self, name: str) -> int | None:
        """Return a whole number above 0, None if it is absent or wrong."""
        text = self.maybe_text(name)
        if text is None:
            return None
        if re.fullmatch(r"[0-9]{1,19}", text) and 0 < int(text) <= INT64_MAX:
            return int(text)
        remedy = "give such a number, or leave the option out for no limit"
        self.add_fault(name, f"is {shown(text)}", "a whole number above 0", remedy)
        return None

    def maybe_size_bytes(self, name: str) -> int | None:
        """Return a number of octets above 0, such as 64m, None if it is absent or wrong."""
        return self._maybe_scaled(name, _BYTE_UNITS, "a size, such as 64m or 1g")

    def maybe_duration_ms(self, name: str) -> int | None:
        """Return a time in ms above 0, such as 15m, None if it is absent or wrong."""
        return self._maybe_scaled(name, TIME_UNITS, "a time, such as 500ms, 30s, 15m or 1h")

    def _maybe_scaled(self, name: str, units: Mapping[str, int], expected: str) -> int | None:
        text = self.maybe_text(name)
        if text is None:
            return None
        value = maybe_scaled(text, units)
        if value is None:
            self.add_fault(name, f"is {shown(text)}", expected, "correct it, or leave it out")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """Return true or false."""
        return self.choice(name, ("true", "false"), "true" if default else "false") == "true"

    def choice(self, name: str, words: Collection[str], default: str) -> str:
        """Return one of some words, in lower case."""
        text = self.maybe_text(name) or default
        if text.lower() in words:
            return text.lower()
        self.add_fault(
            name, f"is {shown(text)}", " or ".join(words), "give one of them, or leave it out"
        )
        return default

    def check_faults(self, side: str) -> None:
        """Raise ConfigurationError if there was any fault; the message lists all of them."""
        if self._faults:
            count = len(self._faults)
            head = f"{count} fault{'s' if count > 1 else ''} in the options of the sbp {side}:"
            raise ConfigurationError("\n".join([head, *(f"  - {line}" for line in self._faults)]))

    def _add_unknown(self, key: str) -> None:
        renamed = _RENAMED.get(key.lower(), "")
        near = [renamed] if renamed in self._names else []
        near += difflib.get_close_matches(key.lower(), self._names, n=1)
        remedy = f"did you mean {self._names[near[0]]}?" if near else "remove it"
        expected = "one of " + ", ".join(self._names.values())
        self.add_fault(shown(key), "is not an option", expected, remedy)

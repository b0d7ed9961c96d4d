"""The declaration of a setting: its type and bounds, meaning, key in the file, and option.

A setting is a field of a frozen dataclass:

    port: int = integer_setting("TCP port to listen on.", 0, 65_535, default=12378, option="--port")

`check_settings` checks the values of an instance; `setting_of` returns the declaration of a field.
"""

from __future__ import annotations

import reprlib
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from sbp_core.errors import ConfigurationError
from sbp_core.quantities import parse_path

_METADATA_KEY: Final = "setting"


@dataclass(frozen=True, slots=True)
class Setting:
    """The declaration of a field, beside its name and its default.

    `type` is what msgspec checks, and `expected` says it in words. `limit` and `unit` are for the
    reference page. Without `section` and `key` a setting is in the section of its command, under
    the name of its field. Without `option` the command line does not have it.
    """

    type: Any
    expected: str
    doc: str
    limit: str
    unit: str = ""
    section: str = ""
    key: str = ""
    option: str = ""
    metavar: str = ""

    @property
    def summary(self) -> str:
        """The first sentence of the meaning, for the help of the option."""
        return f"{self.doc.removesuffix('.').partition('. ')[0]}."

    def check(self, value: object, name: str) -> None:
        """Raise ConfigurationError if a setting called `name` cannot have a value."""
        try:
            msgspec.convert(value, self.type)
        except msgspec.ValidationError:
            raise self._refusal(value, name) from None

    def convert(self, value: object, name: str) -> Any:
        """Return a value of TOML or of the command line in the type of the setting.

        Raises ConfigurationError if it has another type, or is outside of the bounds.
        """
        try:
            return msgspec.convert(value, self.type, dec_hook=_to_path)
        except msgspec.ValidationError:
            raise self._refusal(value, name) from None
        except ConfigurationError as error:  # of a path
            raise ConfigurationError(f"{name}: {error}") from error

    def _refusal(self, value: object, name: str) -> ConfigurationError:
        return ConfigurationError(f"{name}: expected {self.expected}, got {reprlib.repr(value)}")


def setting_of(declared: Field[Any]) -> Setting:
    """Return the declaration of a field."""
    found: Setting = declared.metadata[_METADATA_KEY]
    return found


def check_settings(settings: Any) -> None:
    """Raise ConfigurationError unless each field has a value that its declaration allows."""
    for each in fields(settings):
        if _METADATA_KEY in each.metadata:
            setting_of(each).check(getattr(settings, each.name), each.name)


def text_setting(doc: str, limit: str, *, default: Any = MISSING, **placed: str) -> Any:
    """Declare a text. A default of None means that the setting may be left out."""
    kind = str | None if default is None else str
    return _declared(Setting(kind, "a string", doc, limit, **placed), default)


def path_setting(doc: str, limit: str, *, default: Any = None, **placed: str) -> Any:
    """Declare the path of a file or folder."""
    kind = Path | None if default is None else Path
    return _declared(Setting(kind, "a string", doc, limit, **placed), default)


def list_setting(doc: str, limit: str, **placed: str) -> Any:
    """Declare a list of texts, which is empty by default. Its option may be repeated."""
    return _declared(Setting(tuple[str, ...], "a list of strings", doc, limit, **placed), ())


def integer_setting(doc: str, low: int, high: int, *, default: Any = MISSING, **placed: str) -> Any:
    """Declare an integer from `low` to `high`."""
    kind = Annotated[int, msgspec.Meta(ge=low, le=high)]
    limit = f"{low}..{high}"
    return _declared(Setting(kind, f"an integer in {limit}", doc, limit, **placed), default)


def choice_setting(doc: str, choices: tuple[str, ...], *, default: str, **placed: str) -> Any:
    """Declare a text that is one of some words."""
    limit = ", ".join(choices)
    return _declared(Setting(Literal[choices], f"one of {limit}", doc, limit, **placed), default)


def flag_setting(doc: str, **placed: str) -> Any:
    """Declare a setting that is true or false, and false by default."""
    return _declared(Setting(bool, "true or false", doc, "true, false", **placed), False)


def _declared(setting: Setting, default: Any) -> Any:
    return field(default=default, metadata={_METADATA_KEY: setting})


def _to_path(kind: type, value: object) -> object:
    if kind is Path and isinstance(value, str):
        return Path(parse_path(value))
    raise TypeError  # which msgspec reports as another type than the expected one

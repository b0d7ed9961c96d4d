"""The settings of `sbp serve`: command line over configuration file over defaults."""

from __future__ import annotations

import difflib
import reprlib
import tomllib
from argparse import ArgumentTypeError, Namespace
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from sbp_core import limits
from sbp_core.cli.parsing import parse_path
from sbp_core.cluster import ClusterSettings
from sbp_core.errors import ConfigurationError
from sbp_core.pd import PlacementDriverSettings
from sbp_core.rangeserver.range_server_settings import RangeServerSettings
from sbp_core.regular_files import read_regular

_NOUNS: Final = {int: "an integer", bool: "true or false", str: "a string"}
"""The types that values may have, as messages name them."""

LOG_LEVELS: Final = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Settings of `sbp serve` itself. Raises ConfigurationError for values that cannot be used."""

    cluster: ClusterSettings
    ready_file: Path | None = field(
        default=None,
        metadata={
            "doc": "JSON file with the endpoints, written when the server serves and removed"
            " when it stops; none when not set.",
            "unit": "",
            "limit": "in a folder that exists",
        },
    )
    log_level: str = field(
        default="warning",
        metadata={
            "doc": "What is logged on standard error: this and worse.",
            "unit": "",
            "limit": ", ".join(LOG_LEVELS),
        },
    )

    def __post_init__(self) -> None:
        if self.log_level not in LOG_LEVELS:
            raise ConfigurationError(
                f"log_level {self.log_level!r} is not one of {', '.join(LOG_LEVELS)}"
            )
        if self.ready_file is not None and not self.ready_file.parent.is_dir():
            raise ConfigurationError(
                f"ready_file {self.ready_file}: there is no folder {self.ready_file.parent}; create"
                " it"
            )


def _sections() -> dict[str, dict[str, Field[Any]]]:
    sections: dict[str, dict[str, Field[Any]]] = {
        "serve": {},
        "placement_driver": {},
        "range_server": {},
    }
    shared = {"host", "advertise_host", "connections_per_address_max", "dialect"}
    section_of = {PlacementDriverSettings: "placement_driver", RangeServerSettings: "range_server"}
    for each in (*fields(ClusterSettings), *fields(ServeSettings)):
        part = each.metadata.get("part")
        if part is not None and each.name not in shared:
            sections[section_of[part]][each.metadata["name"]] = each
        elif each.name != "cluster":
            sections["serve"][each.name] = each
    return sections


SECTIONS: Final = _sections()
"""By section and key of the configuration file: the setting that it sets."""


def load_settings(options: Namespace) -> ServeSettings:
    """Return the settings that the command line and its --config file ask for.

    Raises ConfigurationError naming everything that the file has wrong at once.
    """
    values: dict[str, Any] = {}
    if options.config is not None:
        values = load_config(Path(options.config))
    for setting in (each for keys in SECTIONS.values() for each in keys.values()):
        given = getattr(options, setting.name, None)
        if given is not None:
            values[setting.name] = _converted(setting, given)
    of_cluster = {each.name for each in fields(ClusterSettings)}
    cluster = ClusterSettings(**{name: values[name] for name in values if name in of_cluster})
    return ServeSettings(cluster, **{name: values[name] for name in values.keys() - of_cluster})


def load_config(path: Path) -> dict[str, Any]:
    """Return the values that a configuration file sets, by the name of the setting.

    Raises ConfigurationError naming all unknown sections, unknown keys and wrong types at once.
    """
    try:
        content = tomllib.loads(read_regular(path, limits.SMALL_FILE_BYTES_MAX).decode("utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
    except RecursionError as error:
        raise ConfigurationError(f"{path} is not TOML: it is nested too deeply") from error
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError
        raise ConfigurationError(f"{path} is not TOML: {error}") from error
    values: dict[str, Any] = {}
    faults: list[str] = []
    for section, keys in content.items():
        if section not in SECTIONS:
            kind = "section" if isinstance(keys, dict) else "key"
            faults.append(f"unknown {kind} {_quoted(section)}{_nearest(section, SECTIONS)}")
        elif not isinstance(keys, dict):
            faults.append(f"{section} is a section: write [{section}]")
        else:
            _read_section(section, keys, values, faults)
    if faults:
        raise ConfigurationError(f"{path}: {'; '.join(faults)}")
    return values


def _read_section(
    section: str, keys: Mapping[str, object], values: dict[str, Any], faults: list[str]
) -> None:
    known = SECTIONS[section]
    for key, value in keys.items():
        if key not in known:
            faults.append(f"unknown key {_quoted(key)} in [{section}]{_nearest(key, known)}")
            continue
        noun = _NOUNS.get(type(known[key].default), "a string")
        if _NOUNS.get(type(value)) != noun:
            faults.append(f"{key} in [{section}] is {reprlib.repr(value)}, expected {noun}")
            continue
        try:
            values[known[key].name] = _converted(known[key], value)
        except ArgumentTypeError as error:
            faults.append(f"{key} in [{section}]: {error}")


def _converted(setting: Field[Any], value: Any) -> Any:
    return Path(parse_path(value)) if str(setting.type).startswith("Path") else value


def _quoted(name: str) -> str:
    return repr(name if len(name) <= 64 else f"{name[:64]}...")


def _nearest(name: str, known: Mapping[str, object]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f", did you mean {near[0]}?" if near else f" (known: {', '.join(known)})"

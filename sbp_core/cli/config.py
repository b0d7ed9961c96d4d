"""The settings of commands that run servers: command line over configuration file over defaults."""

from __future__ import annotations

import difflib
import re
import reprlib
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from sbp_core import limits
from sbp_core.cli.values import parse_path
from sbp_core.client import parse_endpoint
from sbp_core.cluster_settings import ClusterSettings
from sbp_core.errors import ConfigurationError
from sbp_core.pd import PlacementDriverSettings
from sbp_core.rangeserver.range_server_settings import RangeServerSettings
from sbp_core.regular_files import read_regular
from sbp_core.server.quota_rules import KEYS, QuotaRules, rules_of
from sbp_core.server.settings import (
    ListenerSettings,
    check_settings,
    choice_setting,
    integer_setting,
    setting,
)

_NOUNS: Final = {
    int: "an integer",
    bool: "true or false",
    str: "a string",
    list: "a list of strings",
    tuple: "a list of strings",
}
"""The types that values may have, as messages name them."""

LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_FORMATS: Final = ("text", "json")

S = TypeVar("S", bound=ClusterSettings | PlacementDriverSettings | RangeServerSettings)


@dataclass(frozen=True, slots=True)
class ServeSettings(Generic[S]):
    """Settings of a command that runs `servers`: theirs, and those of the process.

    Raises ConfigurationError for values that cannot be used.
    """

    servers: S
    ready_file: Path | None = setting(
        "JSON file with the endpoints, written when the server serves and removed when it stops;"
        " none when not set.",
        "in a folder that exists",
        default=None,
    )
    log_level: str = choice_setting("Lowest level that is logged.", LOG_LEVELS, default="warning")
    log_format: str = choice_setting(
        "Form of the events in the log: lines of text, or lines of JSON.",
        LOG_FORMATS,
        default="text",
        key=("log", "format"),
    )
    log_file: Path | None = setting(
        "File to which the log is appended; when not set it goes to standard error.",
        "in a folder that exists",
        default=None,
        key=("log", "file"),
    )
    admin_port: int = integer_setting(
        "TCP port of the admin endpoint: health, readiness, metrics and settings over HTTP, on the"
        " same interface as the server, with its TLS and identities. -1 is none, 0 lets the system"
        " pick one. Several range servers of `sbp serve` have one each, on the next ports.",
        -1,
        65_535,
        default=-1,
    )
    audit_file: Path | None = setting(
        "File to which each management operation is appended, as a line of JSON; when not set they"
        " are logged at level info.",
        "in a folder that exists",
        default=None,
        key=("audit", "file"),
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if self.ready_file is not None and not self.ready_file.parent.is_dir():
            raise ConfigurationError(
                f"ready_file {self.ready_file}: there is no folder {self.ready_file.parent}; create"
                " it"
            )

    @property
    def listening(self) -> ListenerSettings:
        """The settings of the server that decides where the process listens, and to whom."""
        if isinstance(self.servers, ClusterSettings):
            return self.servers.placement_driver()
        return self.servers


@dataclass(frozen=True, slots=True)
class Configuration(Generic[S]):
    """The settings of one command, and the file in conf/ that has all of them.

    `sections` has, by section and key of the file, the setting that each sets.
    """

    command: str
    file_name: str
    servers: type[S]
    sections: Mapping[str, Mapping[str, Field[Any]]]

    def load(self, options: Mapping[str, Any]) -> ServeSettings[S]:
        """Return the settings that the command line and its --config file ask for.

        An option that is not given is None or an empty tuple, or is not there.

        Raises ConfigurationError naming everything that the file has wrong at once.
        """
        values: dict[str, Any] = {}
        if options["config"] is not None:
            values = self.read_file(Path(options["config"]))
        of_file = frozenset(values)
        settings = {
            each.name: each
            for section, keys in self.sections.items()
            if section != _QUOTAS
            for each in keys.values()
        }
        for name, known in settings.items():
            given = options.get(name)
            if given not in (None, ()):
                values[name] = _converted(known, given)
        if options.get("advertise") is not None:
            host, port = parse_endpoint(options["advertise"])
            values |= {"advertise_host": host, "advertise_port": port}
        if options["quotas_file"] is not None:
            values["quotas_file"] = Path(options["quotas_file"])
        for name, known in settings.items():
            if known.default is MISSING and name not in values:
                raise ConfigurationError(
                    f"{name} is not set; give {OPTIONS_OF_REQUIRED[name]}, or set {name} in the"
                    " file of --config"
                )
        try:
            return self._settings(values)
        except ConfigurationError as error:
            name = re.split(r"\W", str(error), maxsplit=1)[0]
            if name not in of_file or options.get(name) not in (None, ()):
                raise
            text = str(error).removeprefix(name)
            raise ConfigurationError(f"{options['config']}: {self.key_of(name)}{text}") from error

    def _settings(self, values: Mapping[str, Any]) -> ServeSettings[S]:
        of_servers = {each.name for each in fields(self.servers)}
        servers = self.servers(**{name: values[name] for name in values if name in of_servers})
        return ServeSettings(servers, **{name: values[name] for name in values.keys() - of_servers})

    def key_of(self, name: str) -> str:
        """Return the key that sets a setting, and its section, as messages name them."""
        for section, keys in self.sections.items():
            for key, each in keys.items():
                if section != _QUOTAS and each.name == name:
                    return f"{key} in [{section}]"
        return f"[{_QUOTAS}]"  # the only one without a key: the file that has the section

    def shown(self, settings: ServeSettings[S], quotas: QuotaRules) -> dict[str, dict[str, object]]:
        """Return all settings as the file has them, by section and key, without passwords.

        `quotas` are those that hold, which may be older than their file: all keys of `default`, for
        each identity, and of each one that has its own.
        """
        of_servers = {each.name for each in fields(self.servers)}

        def value(name: str) -> object:
            owner = settings.servers if name in of_servers else settings
            return _shown_value(getattr(owner, name))

        return {
            section: {key: value(each.name) for key, each in keys.items()}
            for section, keys in self.sections.items()
            if section != _QUOTAS
        } | {_QUOTAS: {"file": value("quotas_file")} | quotas.shown()}

    def read_file(self, path: Path) -> dict[str, Any]:
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
            if section not in self.sections:
                kind = "section" if isinstance(keys, dict) else "key"
                nearest = _nearest(section, self.sections)
                faults.append(f"unknown {kind} {_quoted(section)}{nearest}")
            elif not isinstance(keys, dict):
                faults.append(f"{section} is a section: write [{section}]")
            elif section == _QUOTAS:
                faults += _faults_of_quotas(keys)
                values["quotas_file"] = path
            else:
                faults += _read_section(section, keys, self.sections[section], values)
        if faults:
            raise ConfigurationError(f"{path}: {'; '.join(faults)}")
        return values


def _faults_of_quotas(keys: Mapping[str, Any]) -> list[str]:
    """Return what is wrong in the section of quotas, which the servers read themselves."""
    try:
        rules_of(keys)
    except ConfigurationError as error:
        return [str(error)]
    return []


OPTIONS_OF_REQUIRED: Final = {
    "data_dir": "--data-dir DIR",
    "placement_driver": "--pd HOST:PORT",
}
"""Options for the settings that have no default."""

_QUOTAS: Final = "quotas"
_ELSEWHERE: Final = {"servers", "quotas_file"}
"""Fields that are no keys of a section."""

_SECTION_OF: Final[Mapping[type, str]] = {
    PlacementDriverSettings: "placement_driver",
    RangeServerSettings: "range_server",
}


def _of_cluster() -> Configuration[ClusterSettings]:
    sections = _sections("serve", "tls", "auth", "placement_driver", "range_server")
    shared = {"host", "insecure", "advertise_host", "connections_per_address_max"}
    for each in (*fields(ClusterSettings), *fields(ServeSettings)):
        part = each.metadata.get("part")
        if each.name in _ELSEWHERE:
            continue
        if "section" in each.metadata:
            sections[each.metadata["section"]][each.metadata["key"]] = each
        elif part is not None and each.name not in shared:
            sections[_SECTION_OF[part]][each.metadata["name"]] = each
        else:
            sections["serve"][each.name] = each
    return Configuration("serve", "server.toml", ClusterSettings, sections)


def _of_server(command: str, servers: type[S]) -> Configuration[S]:
    sections = _sections(_SECTION_OF[servers], "tls", "auth")
    for each in (*fields(servers), *fields(ServeSettings)):
        if each.name not in _ELSEWHERE:
            section = each.metadata.get("section", _SECTION_OF[servers])
            sections[section][each.metadata.get("key", each.name)] = each
    return Configuration(command, f"{command}.toml", servers, sections)


def _sections(*names: str) -> dict[str, dict[str, Field[Any]]]:
    """Return the sections of a file in their order; the last ones are those of every command."""
    return {name: {} for name in names} | {_QUOTAS: {**KEYS}, "log": {}, "audit": {}}


SERVE: Final = _of_cluster()
PD: Final = _of_server("pd", PlacementDriverSettings)
RANGE_SERVER: Final = _of_server("range-server", RangeServerSettings)


def _read_section(
    section: str,
    keys: Mapping[str, object],
    known: Mapping[str, Field[Any]],
    values: dict[str, Any],
) -> list[str]:
    """Add to `values` what a section sets; return what is wrong in it."""
    faults = []
    for key, value in keys.items():
        if key not in known:
            faults.append(f"unknown key {_quoted(key)} in [{section}]{_nearest(key, known)}")
            continue
        noun = _noun_of(known[key])
        is_list = isinstance(value, list) and all(isinstance(each, str) for each in value)
        if _NOUNS.get(type(value)) != noun or (isinstance(value, list) and not is_list):
            faults.append(f"{key} in [{section}] is {reprlib.repr(value)}, expected {noun}")
            continue
        try:
            values[known[key].name] = _converted(known[key], value)
        except ConfigurationError as error:
            faults.append(f"{key} in [{section}]: {error}")
    return faults


def _converted(known: Field[Any], value: Any) -> Any:
    if isinstance(known.default, tuple):
        return tuple(value)
    return Path(parse_path(value)) if str(known.type).startswith("Path") else value


def _noun_of(known: Field[Any]) -> str:
    """Return the type of a setting's values, as messages name it."""
    choices: tuple[object, ...] = known.metadata.get("choices", (known.default,))
    return _NOUNS.get(type(choices[0]), "a string")


def _shown_value(value: object) -> object:
    """Return a value as JSON has it; of a URL neither the password nor the query."""
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, Path):
        return str(value)
    if not isinstance(value, str) or "://" not in value:
        return value
    scheme, _, rest = value.partition("://")
    user, at, place = rest.rpartition("@")  # a password may have any of : ? @
    user = f"{user.partition(':')[0].partition('?')[0]}:..." if {":", "?"} & {*user} else user
    place = f"{place.partition('?')[0]}?..." if "?" in place else place
    return f"{scheme}://{user}{at}{place}"


def _quoted(name: str) -> str:
    return repr(name if len(name) <= 64 else f"{name[:64]}...")


def _nearest(name: str, known: Mapping[str, object]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f", did you mean {near[0]}?" if near else f" (known: {', '.join(known)})"

"""The settings of commands that run servers: command line over configuration file over defaults."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from sbp_core import limits
from sbp_core.errors import ConfigurationError
from sbp_core.regular_files import read_regular
from sbp_core.settings.declaration import (
    check_settings,
    choice_setting,
    integer_setting,
    path_setting,
    setting_of,
)
from sbp_core.settings.listening import ListenerSettings
from sbp_core.settings.quota_settings import KEYS, QuotaRules, rules_of
from sbp_core.settings.server_settings import (
    ClusterSettings,
    PlacementDriverSettings,
    RangeServerSettings,
)

LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_FORMATS: Final = ("text", "json")

S = TypeVar("S", bound=ClusterSettings | PlacementDriverSettings | RangeServerSettings)


@dataclass(frozen=True, kw_only=True)
class ProcessSettings:
    """Settings of each command that serves, also of those that serve HTTP."""

    ready_file: Path | None = path_setting(
        "JSON file with the endpoints, written when the server serves and removed when it stops;"
        " none when not set.",
        "in a folder that exists",
        option="--ready-file",
    )
    log_level: str = choice_setting(
        "Lowest level that is logged.",
        LOG_LEVELS,
        default="warning",
        option="--log-level",
        metavar="LEVEL",
    )
    log_format: str = choice_setting(
        "Form of the events in the log: lines of text, or lines of JSON.",
        LOG_FORMATS,
        default="text",
        section="log",
        key="format",
        option="--log-format",
        metavar="FORM",
    )
    log_file: Path | None = path_setting(
        "File to which the log is appended; when not set it goes to standard error.",
        "in a folder that exists",
        section="log",
        key="file",
        option="--log-file",
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if self.ready_file is not None and not self.ready_file.parent.is_dir():
            raise ConfigurationError(
                f"ready_file {self.ready_file}: there is no folder {self.ready_file.parent}; create"
                " it"
            )


@dataclass(frozen=True, kw_only=True)
class ServeSettings(ProcessSettings, Generic[S]):
    """Settings of a command that runs `servers`: theirs, and those of the process.

    Raises ConfigurationError for values that cannot be used.
    """

    servers: S
    admin_port: int = integer_setting(
        "TCP port of the admin endpoint: health, readiness, metrics and settings over HTTP, on the"
        " same interface as the server, with its TLS and identities. -1 is none, 0 lets the system"
        " pick one. Several range servers of `sbp serve` have one each, on the next ports.",
        -1,
        65_535,
        default=-1,
        option="--admin-port",
        metavar="PORT",
    )
    audit_file: Path | None = path_setting(
        "File to which each management operation is appended, as a line of JSON; when not set they"
        " are logged at level info.",
        "in a folder that exists",
        section="audit",
        key="file",
        option="--audit-file",
    )

    @property
    def listening(self) -> ListenerSettings:
        """The settings of the server that decides where the process listens, and to whom."""
        if isinstance(self.servers, ClusterSettings):
            return self.servers.placement_driver()
        return self.servers


def settings_of(declared_in: type) -> dict[str, Field[Any]]:
    """Return the settings that a class declares, by name."""
    return {each.name: each for each in fields(declared_in) if each.metadata}


def given_values(settings: Mapping[str, Field[Any]], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of settings whose options are given. Raises ConfigurationError.

    An option that is not given is None or an empty tuple, or is not there.
    """
    return {
        name: setting_of(each).convert(options[name], name)
        for name, each in settings.items()
        if options.get(name) not in (None, ())
    }


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

        Raises ConfigurationError naming everything that the file has wrong at once.
        """
        values: dict[str, Any] = {}
        if options["config"] is not None:
            values = self.read_file(Path(options["config"]))
        of_file = frozenset(values)
        values |= given_values(self.settings, options)
        if options.get("advertise") is not None:
            from sbp_core.client.connecting import parse_endpoint

            host, port = parse_endpoint(options["advertise"])
            values |= {"advertise_host": host, "advertise_port": port}
        for name, known in self.settings.items():
            if known.default is MISSING and name not in values:
                option = setting_of(known)
                raise ConfigurationError(
                    f"{name} is not set; give {option.option} {option.metavar}, or set {name} in"
                    " the file of --config"
                )
        try:
            return self._settings(values)
        except ConfigurationError as error:
            name = re.split(r"\W", str(error), maxsplit=1)[0]
            if name not in of_file or options.get(name) not in (None, ()):
                raise
            text = str(error).removeprefix(name)
            raise ConfigurationError(f"{options['config']}: {self.key_of(name)}{text}") from error

    @property
    def settings(self) -> dict[str, Field[Any]]:
        """The declared settings, by name: those of the servers, and of the process."""
        return settings_of(self.servers) | settings_of(ServeSettings)

    def _settings(self, values: Mapping[str, Any]) -> ServeSettings[S]:
        of_servers = {each.name for each in fields(self.servers)}
        servers = self.servers(**{name: values[name] for name in values if name in of_servers})
        own = {name: values[name] for name in values.keys() - of_servers}
        return ServeSettings(servers=servers, **own)

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


_QUOTAS: Final = "quotas"


def _configuration(
    command: str, file_name: str, servers: type[S], own_section: str, *more: str
) -> Configuration[S]:
    """Return the configuration of a command, whose settings are in `own_section` if in no other."""
    names = (own_section, "tls", "auth", *more)
    sections: dict[str, dict[str, Field[Any]]] = {name: {} for name in names}
    sections |= {_QUOTAS: {**KEYS}, "log": {}, "audit": {}}
    found = Configuration(command, file_name, servers, sections)
    for name, each in found.settings.items():
        if name != "quotas_file":  # the file that has the section sets it
            declared = setting_of(each)
            sections[declared.section or own_section][declared.key or name] = each
    return found


SERVE: Final = _configuration(
    *("serve", "server.toml", ClusterSettings, "serve", "lake", "placement_driver", "range_server")
)
PD: Final = _configuration("pd", "pd.toml", PlacementDriverSettings, "placement_driver")
RANGE_SERVER: Final = _configuration(
    "range-server", "range-server.toml", RangeServerSettings, "range_server"
)


def _read_section(
    section: str,
    keys: Mapping[str, object],
    known: Mapping[str, Field[Any]],
    values: dict[str, Any],
) -> list[str]:
    """Add to `values` what a section sets; return what is wrong in it."""
    faults = []
    for key, value in keys.items():
        where = f"{key} in [{section}]"
        if key not in known:
            faults.append(f"unknown key {_quoted(key)} in [{section}]{_nearest(key, known)}")
            continue
        try:
            values[known[key].name] = setting_of(known[key]).convert(value, where)
        except ConfigurationError as error:
            faults.append(str(error))
    return faults


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

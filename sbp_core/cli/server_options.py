"""The options of commands that serve, made from the declarations of their settings.

An option that is not given is None, or an empty tuple: the configuration file may set it.
"""

from __future__ import annotations

from dataclasses import MISSING, Field
from pathlib import Path
from typing import Any, Final

import click

from sbp_core.cli.options import INTEGER, PATH, Declare, declaring
from sbp_core.settings.configuration import Configuration, settings_of
from sbp_core.settings.declaration import setting_of
from sbp_core.settings.listening import ListenerSettings

HANG_UP_HELP: Final = (
    "SIGHUP reads the files of TLS and of keys again, quotas, and level and form of the log in the"
    " configuration file; and it opens the files of the log and of the audit trail again."
)
_ADVERTISE: Final = click.option(
    "--advertise",
    metavar="HOST:PORT",
    help="Where others reach it; sets advertise_host and advertise_port. [default: --host and"
    " --port]",
)
_UNTIL_STDIN_CLOSES: Final = click.option(
    "--until-stdin-closes",
    is_flag=True,
    help="Also stop when standard input, a pipe, ends: for programs that start a server.",
)


def setting_option(declared: Field[Any]) -> Declare:
    """Return the option of a setting. Its help is the first sentence of the setting's meaning."""
    setting = setting_of(declared)
    kinds: dict[str, Any] = {}
    if setting.type is bool:
        kinds = {"is_flag": True, "default": None}
    elif isinstance(declared.default, tuple):
        kinds = {"multiple": True}
    elif setting.type in (Path, Path | None):
        kinds = {"type": PATH}
    elif setting.expected.startswith("an integer"):
        kinds = {"type": INTEGER}
    about = setting.summary
    if declared.default is MISSING:
        about += " Required, here or in the file."
    elif isinstance(declared.default, tuple):
        about = f"{about.removesuffix('.')}; repeatable."
    elif declared.default not in (None, False, -1):
        about += f" [default: {declared.default}]"
    return click.option(
        setting.option, declared.name, metavar=setting.metavar or None, help=about, **kinds
    )


def server_options(configuration: Configuration[Any]) -> Declare:
    """Return a decorator that declares all options of a command that runs servers."""
    is_single = issubclass(configuration.servers, ListenerSettings)
    options = [
        _ADVERTISE if name == "advertise_host" and is_single else setting_option(each)
        for name, each in configuration.settings.items()
        if setting_of(each).option
    ]
    about = f"Settings in TOML; conf/{configuration.file_name} names all of them."
    options.append(click.option("--config", type=PATH, help=about))
    return declaring([*options, _UNTIL_STDIN_CLOSES])


def settings_options(*classes: type) -> list[Declare]:
    """Return the options of the settings that classes declare."""
    return [setting_option(each) for one in classes for each in settings_of(one).values()]

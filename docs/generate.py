"""Write what is made from the code: pages of docs/reference, and the settings in conf/.

python docs/generate.py            write them
python docs/generate.py --check    exit 1 when the committed ones differ
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field
from pathlib import Path
from typing import Any, Final

import api_pages
import click
import metrics_page
import spark_features
import status_codes
from status_codes import NOTICE, table

from sbp_core import limits
from sbp_core.cli import main as command_line
from sbp_core.cli.commands import Command, CommandWithActions, Listed
from sbp_core.cli.options import ClientOptions, client_options
from sbp_core.pd.txns.publications import PUBLICATION
from sbp_core.rangeserver.hosted_ranges import RANGE
from sbp_core.session.states import CALL, CONNECTION, REFUSED, Machine
from sbp_core.settings.configuration import PD, RANGE_SERVER, SERVE, Configuration
from sbp_core.settings.declaration import setting_of
from sbp_spark.command import CHECKPOINT
from sbp_spark.options.declaring import Option
from sbp_spark.options.sink import SINK_OPTIONS
from sbp_spark.options.source import SOURCE_OPTIONS

DOCS: Final = Path(__file__).parent
REFERENCE: Final = DOCS / "reference"
CONF: Final = DOCS.parent / "conf"
API_PAGES: Final = (REFERENCE / "client.md", REFERENCE / "records-client.md")
"""Pages with the public names of modules in places that they mark."""

CONF_INTRODUCTION: Final = (
    "Settings of `sbp {command} --config conf/{file_name}`. Every key is here, with its default; a"
    " key that is left out has that default too. Options of the command line win over this file."
)
EXAMPLES: Final = {
    "advertise_host": "log.example.org",
    "rack": "rack-1",
    "tls_cert_file": "/etc/sbp/server.pem",
    "tls_key_file": "/etc/sbp/server.key",
    "tls_ca_file": "/etc/sbp/ca.pem",
    "tls_client_ca_file": "/etc/sbp/clients.pem",
    "auth_jwks_file": "/etc/sbp/jwks.json",
    "auth_jwks_url": "https://id.example.org/jwks.json",
    "auth_jwks_ca_file": "/etc/sbp/issuer-ca.pem",
    "auth_issuer": "https://id.example.org",
    "auth_audience": "sbp",
    "ready_file": "sbp-ready.json",
    "log_file": "/var/log/sbp/server.log",
    "audit_file": "/var/log/sbp/audit.jsonl",
    "data_dir": "/var/lib/sbp",
    "store": "postgresql://sbp@db.example.org/sbp",
    "placement_driver": "pd1.example.org:12378,pd2.example.org:12378",
}
"""By setting: a value of those that have no default."""


REFUSALS: Final[Mapping[str, str]] = {
    "connection": "A refused `START_CALL` raises ShuttingDownError while draining and ConnectError"
    " once closed, before anything is sent. A refused `RECEIVE_REQUEST` is answered with a system"
    " error frame, RS_SHUTTING_DOWN, while draining; once closed nothing is read. A"
    " refused `SEND_GOAWAY` sends nothing. Answers are read in any state but `CLOSED`.",
    "call": "A finished call is forgotten, so a frame that still comes for it is a late answer and"
    " dropped. An answer to a call id that was never issued ends the connection.",
    "range": "A refusal is the status of the one item that asked: RANGE_ALREADY_SEALED where the"
    " range is sealed, NOT_FOUND where its stream was deleted.",
    "publication": "Nothing else can be learned in a state, so a refusal is a mistake in the code.",
}

PLACES: Final[Mapping[str, str]] = {
    "connection": "sbp_core/session/states.py",
    "call": "sbp_core/session/states.py",
    "range": "sbp_core/rangeserver/hosted_ranges.py",
    "publication": "sbp_core/pd/txns/publications.py",
}


STATES_INTRODUCTION: Final = """\
# State machines

Each machine is one total table. For every state and input it has the next state, or says that the
input is refused. Both sides of a connection use the same tables.
"""


OPTIONS_INTRODUCTION: Final = """\
# Options of `format("sbp")`

Names are not case-sensitive. Unknown options, invalid values and contradictory options are refused
before anything is read or written. One error names all of them, what was expected, and the remedy.
"""

OPTIONS_OF_SOURCE: Final = """\
## Source

For `spark.read` and `spark.readStream`.
"""

OPTIONS_OF_SINK: Final = """\
## Sink

For `df.write` and `df.writeStream`.
"""


OPTIONS_LIMITS: Final = """\
## Limits

A write that exceeds a limit is refused before it is sent, with an error that names it. No option
raises these limits. The limit of a record is a setting of the range servers: `record_bytes_max`,
which is `--record-bytes-max` of `sbp serve`. A sink writes records of the size that the server of a
stream accepts; a source reads the largest records, whatever the setting is. The
[limits](limits.md) of the protocol and the servers have a page of their own.
"""

CLI_INTRODUCTION: Final = """\
# Command line

`sbp` runs servers and works with streams. `sbp COMMAND --help` prints what is on this page.

| exit code | meaning |
|---|---|
| 0 | success |
| 1 | a server failed or refused, a check found damage, or a record of the input has a fault |
| 2 | the command was called or configured wrongly |
| 130 | interrupted by Ctrl-C |

A failure is one line on standard error; with `--json` it is an object there: `error` is its kind,
`message` the line, and `status` the status code if a server sent one.

## Options of clients

Commands that ask a placement driver have these:

"""

CONFIGURATION_INTRODUCTION: Final = """\
# Configuration of the servers

`sbp serve`, `sbp pd` and `sbp range-server` read a TOML file, `--config FILE`, with the sections
below; the file in `conf` has every key with its default. A key that is left out has its default.
Options of the command line win over the file. Unknown keys, wrong types and values that are not
allowed are refused before anything starts.
"""

CONFIGURATIONS: Final[tuple[Configuration[Any], ...]] = (SERVE, PD, RANGE_SERVER)

RECORD_LIMITS: Final = {
    "bytes of a record: key, value and headers, or its columns": (
        f"{limits.RECORD_BYTES_MAX}, or up to {limits.RECORD_BYTES_LARGEST} as the servers are set"
    ),
    "columns of a typed stream, with all that are in them": limits.SCHEMA_FIELDS_MAX,
    "lists, maps and structs inside each other": limits.SCHEMA_DEPTH_MAX,
    "bytes of a column's name": limits.SCHEMA_NAME_BYTES_MAX,
    "bytes of a schema, which are some 60 and the name for each column": limits.SCHEMA_BYTES_MAX,
    "versions of a stream's schema": limits.SCHEMA_VERSIONS_MAX,
    "characters of a stream's name": limits.STREAM_NAME_LENGTH_MAX,
}


def machine_section(machine: Machine[Any, Any]) -> Iterator[str]:
    """Yield a state machine's diagram, its table and what a refusal means."""
    states: list[Any] = [*machine.table]
    inputs: list[Any] = [*machine.table[states[0]]]
    yield from [f"## {machine.name.capitalize()}", "", f"`{PLACES[machine.name]}`", ""]
    yield from ["```mermaid", "stateDiagram-v2", f"    [*] --> {states[0].name}"]
    for state in states:
        for target in states:
            labels = [each.name for each in inputs if machine.table[state][each] is target]
            if labels:
                yield f"    {state.name} --> {target.name}: {', '.join(labels)}"
    yield from ["```", ""]
    cells = {
        state: [
            "refused" if (target := machine.table[state][each]) is REFUSED else target.name
            for each in inputs
        ]
        for state in states
    }
    yield from table(
        ["in state", *(each.name for each in inputs)],
        [[f"**{state.name}**", *cells[state]] for state in states],
    )
    yield from ["", REFUSALS[machine.name], ""]
    yield from (f"- `{each.name}`: {each.value}" for each in (*states, *inputs))
    yield ""


def states_document() -> str:
    """Return the page of the state machines."""
    lines = [NOTICE, STATES_INTRODUCTION]
    for machine in (CONNECTION, CALL, RANGE, PUBLICATION):
        lines += machine_section(machine)
    return "\n".join(lines)


def options_table(options: Iterable[Option[Any]]) -> Iterator[str]:
    """Yield the table of one side's options."""
    rows = [
        [f"`{each.name}`", each.shown_default, each.meaning.replace("|", "\\|")] for each in options
    ]
    yield from table(["option", "default", "meaning"], rows)


def options_document() -> str:
    """Return the page of the connector's options."""
    lines = [NOTICE, OPTIONS_INTRODUCTION, OPTIONS_OF_SOURCE, *options_table(SOURCE_OPTIONS), ""]
    lines += [OPTIONS_OF_SINK, *options_table(SINK_OPTIONS), "", OPTIONS_LIMITS]
    lines += table(["limit", "most"], [[of, str(most)] for of, most in RECORD_LIMITS.items()])
    lines += [""]
    return "\n".join(lines)


def arguments_of(command: click.Command) -> dict[str, str]:
    """Return the options and arguments of a command, with what they mean."""
    context = click.Context(command, max_content_width=10_000)
    records = (each.get_help_record(context) for each in command.params)
    return dict(each for each in records if each is not None)


def command_section(path: str, command: click.Command) -> Iterator[str]:
    """Yield what a command does, its arguments, and those of its actions."""
    common = arguments_of(_CLIENT).items()
    own = arguments_of(command).items()
    yield from [f"{'###' if path.count(' ') > 1 else '##'} {path}", ""]
    if isinstance(command, Command):
        yield from [f"Example: `{command.example}`", ""]
    yield from [inspect.cleandoc(command.help or ""), ""]
    if is_client := common <= own:
        yield from ["Takes the [options of clients](#options-of-clients).", ""]
    rows = [
        [f"`{name}`".replace("|", "\\|"), meaning or "-"]
        for name, meaning in own
        if not (is_client and (name, meaning) in common)
    ]
    if rows:
        yield from [*table(["argument", "meaning"], rows), ""]
    for name, action in actions_of(command).items():
        yield from command_section(f"{path} {name}", action)


def actions_of(command: click.Command) -> Mapping[str, click.Command]:
    """Return the actions of a command, by name; none if it has none."""
    if isinstance(command, CommandWithActions):
        return command.actions
    return command.commands if isinstance(command, click.Group) else {}


@click.command()
@client_options
def _CLIENT(options: ClientOptions) -> int:  # noqa: N802 - a constant
    """Have the options of clients, and no others."""
    return 0


def cli_document() -> str:
    """Return the page of the command line."""
    lines = [NOTICE, CLI_INTRODUCTION]
    lines += table(
        ["argument", "meaning"],
        [[f"`{name}`", meaning] for name, meaning in arguments_of(_CLIENT).items()],
    )
    lines.append("")
    sbp = command_line.command([Listed(*CHECKPOINT)])
    context = click.Context(sbp)
    for name in sbp.list_commands(context):
        command = sbp.get_command(context, name)
        assert command is not None
        lines += command_section(f"sbp {name}", command)
    return "\n".join(lines)


def configuration_document() -> str:
    """Return the page of the settings of commands that run servers."""
    lines = [NOTICE, CONFIGURATION_INTRODUCTION]
    for each in CONFIGURATIONS:
        lines += [f"## sbp {each.command}", "", f"`conf/{each.file_name}`", ""]
        for section, settings in each.sections.items():
            rows = []
            for key, setting in settings.items():
                about, default = setting_of(setting), shown_default(setting)
                rows.append([f"`{key}`", default, about.unit or "-", about.limit, about.doc])
            lines += [f"### [{section}]", ""]
            lines += [*table(["key", "default", "unit", "allowed", "meaning"], rows), ""]
    return "\n".join(lines)


def shown_default(setting: Field[Any]) -> str:
    """Return the default of a setting as a page shows it."""
    if setting.default is MISSING:
        return "required"
    default = json.dumps(setting.default) if isinstance(setting.default, tuple) else setting.default
    return "not set" if default is None else f"`{default}`".replace("True", "true")


def setting_lines(key: str, setting: Field[Any]) -> Iterator[str]:
    """Yield a key of a file in conf/, below its meaning, unit and limit."""
    about = setting_of(setting)
    yield from textwrap.wrap(about.doc, 100, initial_indent="# ", subsequent_indent="# ")
    yield f"# {f'Unit: {about.unit}. ' if about.unit else ''}Limit: {about.limit}"
    default = setting.default
    if default is MISSING:
        yield f"# Required, here or as {about.option} {about.metavar}."
    if default is MISSING or default is None:
        yield f"# {key} = {json.dumps(EXAMPLES[setting.name])}"
    else:
        yield f"{key} = {json.dumps(str(default) if isinstance(default, Path) else default)}"


def configuration_file(configuration: Configuration[Any]) -> str:
    """Return a file in conf/."""
    introduction = CONF_INTRODUCTION.format(
        command=configuration.command, file_name=configuration.file_name
    )
    lines = [f"# {line}" for line in textwrap.wrap(introduction, 98)] + [""]
    for section, keys in configuration.sections.items():
        lines += [f"[{section}]", ""]
        for key, setting in keys.items():
            lines += [*setting_lines(key, setting), ""]
    return "\n".join(lines)


def documents() -> dict[Path, str]:
    """Return the generated documents, by path."""
    return {
        REFERENCE / "status-codes.md": status_codes.errors_document(),
        REFERENCE / "states.md": states_document(),
        REFERENCE / "options.md": options_document(),
        REFERENCE / "metrics.md": metrics_page.metrics_document(),
        REFERENCE / "spark-features.md": spark_features.features_document(),
        REFERENCE / "cli.md": cli_document(),
        REFERENCE / "configuration.md": configuration_document(),
        **{path: api_pages.filled(path.read_text(encoding="utf-8")) for path in API_PAGES},
        **{CONF / each.file_name: configuration_file(each) for each in CONFIGURATIONS},
    }


def main() -> int:
    """Write the documents, or report which differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 on a difference"
    )
    is_check = parser.parse_args().check
    faults = spark_features.faults()
    for each in faults:
        print(f"spark-features.md: {each}")
    stale = []
    for path, text in documents().items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(path.name)
        if not is_check:
            path.write_text(text, encoding="utf-8")
    if is_check and stale:
        print(f"{', '.join(stale)}: differs from the code; run `python docs/generate.py`")
    return 1 if faults or (is_check and stale) else 0


if __name__ == "__main__":
    sys.exit(main())

"""Write what is made from the code: pages of docs/reference, and conf/server.toml.

python docs/generate.py            write them
python docs/generate.py --check    exit 1 when the committed ones differ
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import Field
from pathlib import Path
from typing import Any, Final

from sbp_core import errors, limits
from sbp_core.cli.config import SECTIONS
from sbp_core.cli.main import COMMANDS, Command
from sbp_core.cli.parsing import Parser, add_client_options
from sbp_core.errors import SbpError, StatusCode, StatusError, error_for_code
from sbp_core.pd.txns.publications import PUBLICATION
from sbp_core.rangeserver.hosted_ranges import RANGE
from sbp_core.session.states import CALL, CONNECTION, REFUSED, Machine
from sbp_core.wire.status import SUCCESS_CODES
from sbp_spark.command import CHECKPOINT
from sbp_spark.options import SINK_OPTIONS, SOURCE_OPTIONS, Option

DOCS: Final = Path(__file__).parent
REFERENCE: Final = DOCS / "reference"
CONF: Final = DOCS.parent / "conf"

CONF_INTRODUCTION: Final = """\
# Settings of `sbp serve --config conf/server.toml`. Every key is here, with its default; a key that
# is left out has that default too. Options of the command line win over this file.
"""
EXAMPLES: Final = {"advertise_host": "log.example.org", "ready_file": "sbp-ready.json"}
"""Values of settings that have no default."""

OURS_NEVER: Final = "never this project's"
ALSO_ACCEPTED: Final = f"servers of the ElasticStream family; {OURS_NEVER}"
LATER: Final = f"servers of ElasticStream from May 2023 on; {OURS_NEVER}"
IN_THE_DIALECT: Final = "servers that speak `elasticstream-2023-04`"

SENT_BY: Final[Mapping[StatusCode, str]] = {
    StatusCode.NONE: "both servers: success",
    StatusCode.UNKNOWN: "both servers: an unexpected error while the request was handled",
    StatusCode.INVALID_REQUEST: "both servers: a header that cannot be decoded, a value"
    " that is not allowed, a batch that is damaged or too large",
    StatusCode.UNSUPPORTED_VERSION: f"servers of another version; {OURS_NEVER}",
    StatusCode.PD_NOT_LEADER: "a placement driver that is not the leader (`detail` is a"
    f" PlacementDriverCluster); {OURS_NEVER}, which is alone and leads",
    StatusCode.OK: f"{IN_THE_DIALECT}: success",
    StatusCode.NO_NEW_RECORD: f"range {IN_THE_DIALECT}: FETCH finds nothing, or its one frame is"
    " full",
    StatusCode.BAD_REQUEST: f"{IN_THE_DIALECT}. Means INVALID_REQUEST",
    StatusCode.PERMISSION_DENIED: "a range server: END_TXN, SEAL_RANGE and APPEND of a copy of a"
    " transaction from a peer that has not proven to be the placement driver, and HEARTBEAT as the"
    " placement driver without that proof (`detail` is the challenge); the placement driver:"
    " HEARTBEAT or REPORT_METRICS of a range server with a wrong secret",
    StatusCode.NOT_FOUND: "the placement driver: no such stream; a range server: the stream was"
    " deleted",
    StatusCode.REQUEST_TIMEOUT: "both servers, if deadlines are negotiated: the `timeout_ms` of"
    " the request is over",
    StatusCode.CONFLICT: "the placement driver: the stream's name is taken; HEARTBEAT with the id,"
    " or the address, of another range server that is alive",
    StatusCode.TOO_MANY_REQUESTS: "a range server: too many appends wait for the disk (with"
    " `throttle_time_ms`); both servers: too many connections or open calls",
    StatusCode.RANGE_ALREADY_SEALED: "a range server: APPEND to a sealed range",
    StatusCode.OFFSET_OVERFLOW: f"{ALSO_ACCEPTED}. An offset beyond the end of a range",
    StatusCode.APPEND_TO_COMMITTED_OFFSET: f"{LATER}. The offset of an append is committed already",
    StatusCode.APPEND_TO_PENDING_OFFSET: f"{LATER}. The offset of an append is being committed",
    StatusCode.APPEND_TO_OVERTAKEN_OFFSET: f"{LATER}. Appends before this one are missing",
    StatusCode.EXPIRED_RANGE_EPOCH: f"{LATER}. A newer writer has taken the range over",
    StatusCode.SEAL_RANGE_NOT_FOUND: f"{ALSO_ACCEPTED}. The stream has no such range to seal",
    StatusCode.RANGE_NOT_FOUND: "a range server that does not host the range; the placement driver:"
    " the stream has no such range",
    StatusCode.OFFSET_OUT_OF_RANGE: "a range server: FETCH outside what it holds; the placement"
    " driver: TRIM_STREAMS beyond the tail. `detail` is the first and the next offset, two"
    " big-endian int64",
    StatusCode.CREATE_RANGE_BEFORE_SEAL: "the placement driver: the stream's last range is open",
    StatusCode.UNSUPPORTED_OPERATION: "both servers: an opcode that this kind of server does not"
    " serve",
    StatusCode.UNKNOWN_OPERATION: f"{ALSO_ACCEPTED}. Means UNSUPPORTED_OPERATION",
    StatusCode.PD_INTERNAL: "the placement driver: its metadata changed during the request, or"
    " cannot be written, or a range server contradicts them; UNKNOWN in the dialect"
    " `elasticstream-2023-04`",
    StatusCode.PD_NO_AVAILABLE_RS: "the placement driver: no live range server can host a range,"
    " or the server that knows a stream's tail does not answer",
    StatusCode.ES_PD_NOT_LEADER: f"{ALSO_ACCEPTED}. Means PD_NOT_LEADER",
    StatusCode.SEAL_NO_SERVER_ANSWERED: "the placement driver: the server of the range to seal does"
    " not answer; nothing is stored, but the range may be sealed there",
    StatusCode.RS_INTERNAL: "a range server that cannot write its log and is about to exit, or"
    " cannot read what a FETCH requests; UNKNOWN in the dialect `elasticstream-2023-04`",
    StatusCode.RS_DATA_CORRUPTED: "a range server: FETCH of a batch that is damaged on disk. The"
    " message names file, range and offsets; other offsets are served",
    StatusCode.RS_DISK_FULL: "a range server: APPEND while the free disk space is below"
    " `disk_free_floor_bytes` (with `throttle_time_ms`)",
    StatusCode.WRITER_GAP: "a range server: an earlier batch of the writer is missing. `detail` is"
    " the sequence that is expected, a big-endian int64",
    StatusCode.WRITER_REPEAT: "a range server: the writer's batch was appended, but its offset"
    " is no longer known",
    StatusCode.WRITER_UNKNOWN: "a range server: a writer that is unknown, or was forgotten, does"
    " not begin with sequence 0",
    StatusCode.WRITERS_NOT_THERE: "a range server: APPEND of a writer, before it has the state"
    " of the stream's writers on other servers",
    StatusCode.TXN_ENDED: "a range server: APPEND of staged batches, or END_TXN, of a transaction"
    " that was published or dropped",
    StatusCode.TXN_INCOMPLETE: "a range server: another number of records is staged than END_TXN"
    " says",
    StatusCode.TXN_ABORTED: "the placement driver: COMMIT_TXN of a transaction that was given up,"
    " or whose range was trimmed",
    StatusCode.RS_SHUTTING_DOWN: "both servers: a request after GOAWAY",
}

OF_ITS_OWN: Final[Mapping[type[SbpError], str]] = {
    errors.NotLeaderError: "asks the leader that `detail` names, or the next known placement"
    " driver, after a backoff",
    errors.NoRangeServerError: "CREATE_STREAMS, APPEND and FETCH are retried after a backoff;"
    " others raise it, and the caller may retry",
    errors.SealUnansweredError: "raises it; the caller may retry",
}

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

NOTICE: Final = "<!-- Made by `python docs/generate.py` from the code. Do not edit. -->"

ERRORS_INTRODUCTION: Final = """\
# Status codes and errors

Every `status.code` of the protocol, which server sends it, and how the client reacts. Codes 0 to 5
are the specification's. The others are ElasticStream's, and extensions. A status is in the header
of an answer (for the whole frame), in each item (for that item), or in a system error frame (the
call is over).

*Retriable*: the same call may succeed later. *Effect*: whether the request had an effect. A code
that is not listed keeps its number in a plain StatusError: not retriable, effect unknown.
"""

ERRORS_WITHOUT_CODE: Final = """
The client stops retrying an operation after `RETRY_BUDGET_MS` without progress. The pauses between
retries are random and grow from `RETRY_BACKOFF_MS` to `RETRY_BACKOFF_MS_MAX`, see `RetryPolicy` of
the [client](client.md).

## Errors without a code

The client raises them itself, without an answer or because of its bytes.
"""

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

What exceeds a limit is refused before it is sent, with an error that names it. No option raises
these limits. The [limits](limits.md) of the protocol and the servers have a page of their own.
"""

CLI_INTRODUCTION: Final = """\
# Command line

`sbp` runs servers and works with streams. `sbp COMMAND --help` prints what is on this page.

| exit code | meaning |
|---|---|
| 0 | success |
| 1 | a server or the network failed, or a check found damage |
| 2 | the command was called or configured wrongly |
| 130 | interrupted by Ctrl-C |

A failure is one line on standard error.

## Options of clients

Commands that ask a placement driver have these two:

| argument | meaning |
|---|---|
| `--endpoint HOST:PORT` | placement driver (default: $SBP_ENDPOINT, or 127.0.0.1:12378) |
| `--json` | print JSON, one object per line |
"""

CONFIGURATION_INTRODUCTION: Final = """\
# Configuration of the servers

`sbp serve --config FILE` reads a TOML file with the sections below; `conf/server.toml` has every
key with its default. A key that is left out has its default. Options of the command line win over
the file. Unknown keys, wrong types and values that are not allowed are refused before anything
starts.
"""

RECORD_LIMITS: Final = {
    "bytes of a record: key, value and headers, or its columns": limits.RECORD_BYTES_MAX,
    "columns of a typed stream, with all that are in them": limits.SCHEMA_FIELDS_MAX,
    "lists, maps and structs inside each other": limits.SCHEMA_DEPTH_MAX,
    "bytes of a column's name": limits.SCHEMA_NAME_BYTES_MAX,
    "bytes of a schema, which are some 60 and the name for each column": limits.SCHEMA_BYTES_MAX,
    "versions of a stream's schema": limits.SCHEMA_VERSIONS_MAX,
    "characters of a stream's name": limits.STREAM_NAME_LENGTH_MAX,
}


def table(head: list[str], rows: list[list[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def yes_no(*, value: bool) -> str:
    """Return a word for a bool."""
    return "yes" if value else "no"


def what_the_client_does(error: SbpError) -> str:
    """Return what sbp_core.client makes of an error, by the error's own attributes."""
    if not error.retriable:
        return "raises it"
    if type(error) in OF_ITS_OWN:
        return OF_ITS_OWN[type(error)]
    again = "retries"
    if isinstance(error, StatusError):
        again = "after `throttle_time_ms` and a backoff, retries"
    if error.outcome is not errors.Outcome.NOT_APPLIED:
        again += " idempotent calls, and an APPEND whose caller accepts duplicates"
    return f"looks up the placement; {again}" if error.refreshes_placement else again


def code_row(code: StatusCode) -> list[str]:
    """Return a status code's row."""
    first = [str(int(code)), code.name]
    if code in SUCCESS_CODES:
        return [*first, "-", "applied", SENT_BY[code], "-", "success"]
    if code is StatusCode.NO_NEW_RECORD:
        asks_again = "polls while its caller waits, then returns no records"
        return [*first, "-", "not applied", SENT_BY[code], "-", asks_again]
    error = error_for_code(code, "")
    return [
        *first,
        yes_no(value=error.retriable),
        error.outcome.value,
        SENT_BY[code],
        type(error).__name__,
        what_the_client_does(error),
    ]


def plain_errors() -> list[SbpError]:
    """Return one of each exception that stands for no status code, in the order of the module."""
    types = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]
    plain = [
        kind
        for kind in types
        if issubclass(kind, SbpError)
        and not issubclass(kind, StatusError | errors.LogError)
        and kind is not SbpError
    ]
    plain.sort(key=lambda kind: inspect.getsourcelines(kind)[1])
    return [kind() for kind in plain]


def errors_document() -> str:
    """Return the page of the status codes."""
    codes = table(
        ["code", "name", "retriable", "effect", "sent by", "exception", "what the client does"],
        [code_row(code) for code in StatusCode],
    )
    plain = table(
        ["exception", "retriable", "effect", "meaning", "what the client does"],
        [
            [
                type(error).__name__,
                yes_no(value=error.retriable),
                error.outcome.value,
                (inspect.getdoc(error) or "").splitlines()[0],
                what_the_client_does(error),
            ]
            for error in plain_errors()
        ],
    )
    return "\n".join([NOTICE, ERRORS_INTRODUCTION, *codes, ERRORS_WITHOUT_CODE, *plain, ""])


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


def actions_of(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield the actions of a subcommand, each with its line of help; none if it has none."""
    for group in parser._actions:
        if isinstance(group, argparse._SubParsersAction):
            for listed, each in zip(group._choices_actions, group.choices.values(), strict=True):
                yield listed.help or "", each


def arguments_of(parser: argparse.ArgumentParser) -> dict[str, str]:
    """Return the options and arguments of a parser, with what they mean."""
    found = {}
    for each in parser._actions:
        if each.dest == "help" or isinstance(each, argparse._SubParsersAction):
            continue
        value = each.metavar if each.nargs != 0 else ""
        if value is None:
            value = "|".join(map(str, each.choices)) if each.choices else each.dest.upper()
        text = " ".join(filter(None, [", ".join(each.option_strings), str(value)]))
        found[text] = (each.help or "") % {"default": each.default}
    return found


def parser_section(about: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield what a command does, and its arguments."""
    clients = argparse.ArgumentParser()
    add_client_options(clients)
    common = arguments_of(clients).items()
    own = arguments_of(parser).items()
    yield from [parser.description or f"{about[0].upper()}{about[1:]}.", ""]
    if is_client := common <= own:
        yield from ["Takes the [options of clients](#options-of-clients).", ""]
    rows = [
        [f"`{name}`".replace("|", "\\|"), meaning or "-"]
        for name, meaning in own
        if not (is_client and (name, meaning) in common)
    ]
    if rows:
        yield from [*table(["argument", "meaning"], rows), ""]


def command_section(command: Command) -> Iterator[str]:
    """Yield a subcommand, and its actions."""
    declared = Parser(prog=f"sbp {command.name}")
    command.declare(declared)
    yield from [f"## sbp {command.name}", "", *parser_section(command.help, declared)]
    for about, parser in actions_of(declared):
        yield from [f"### {parser.prog}", "", *parser_section(about, parser)]


def cli_document() -> str:
    """Return the page of the command line."""
    os.environ.pop("SBP_ENDPOINT", None)  # the page shows what is used without it
    lines = [NOTICE, CLI_INTRODUCTION]
    for command in (*COMMANDS, Command(*CHECKPOINT)):
        lines += command_section(command)
    return "\n".join(lines)


def configuration_document() -> str:
    """Return the page of the settings of `sbp serve`."""
    lines = [NOTICE, CONFIGURATION_INTRODUCTION]
    for section, settings in SECTIONS.items():
        rows = []
        for key, setting in settings.items():
            unset = setting.default is None
            default = "not set" if unset else f"`{setting.default}`".replace("True", "true")
            about = setting.metadata
            rows.append([f"`{key}`", default, about["unit"] or "-", about["limit"], about["doc"]])
        lines += [f"## [{section}]", ""]
        lines += [*table(["key", "default", "unit", "allowed", "meaning"], rows), ""]
    return "\n".join(lines)


def setting_lines(key: str, setting: Field[Any]) -> Iterator[str]:
    """Yield a key of conf/server.toml, below its meaning, unit and limit."""
    yield from textwrap.wrap(
        setting.metadata["doc"], 100, initial_indent="# ", subsequent_indent="# "
    )
    unit = setting.metadata["unit"]
    yield f"# {f'Unit: {unit}. ' if unit else ''}Limit: {setting.metadata['limit']}"
    default = setting.default
    value = str(default) if isinstance(default, Path) else default
    yield f"{key} = {json.dumps(value)}" if default is not None else f'# {key} = "{EXAMPLES[key]}"'


def server_configuration() -> str:
    """Return conf/server.toml."""
    lines = [CONF_INTRODUCTION]
    for section, keys in SECTIONS.items():
        lines += [f"[{section}]", ""]
        for key, setting in keys.items():
            lines += [*setting_lines(key, setting), ""]
    return "\n".join(lines)


def documents() -> dict[Path, str]:
    """Return the generated documents, by path."""
    return {
        REFERENCE / "status-codes.md": errors_document(),
        REFERENCE / "states.md": states_document(),
        REFERENCE / "options.md": options_document(),
        REFERENCE / "cli.md": cli_document(),
        REFERENCE / "configuration.md": configuration_document(),
        CONF / "server.toml": server_configuration(),
    }


def main() -> int:
    """Write the documents, or tell which differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 on a difference"
    )
    is_check = parser.parse_args().check
    stale = []
    for path, text in documents().items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(path.name)
        if not is_check:
            path.write_text(text, encoding="utf-8")
    if is_check and stale:
        print(f"{', '.join(stale)}: differs from the code; run `python docs/generate.py`")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

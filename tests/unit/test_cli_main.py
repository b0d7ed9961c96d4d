"""The command's own part: options, exit codes, one line for each error."""

import asyncio
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata

import click
import pyarrow as pa
import pytest

from sbp_core import __version__
from sbp_core.cli import cluster_commands, output
from sbp_core.cli import main as command
from sbp_core.cli.commands import Command, CommandWithActions, Listed
from sbp_core.cli.connect import parse_stream
from sbp_core.cli.options import DURATION_MS, NUMBER, SIZE, client_options
from sbp_core.cli.serving import stopped_at_end
from sbp_core.errors import ConfigurationError, LogCorruptionError, LogWriteError, SbpError
from sbp_core.pd.metadata.tables import SCHEMA_VERSION, SCHEMA_VERSION_BEFORE
from sbp_core.quantities import show_duration, show_retention, show_size
from sbp_core.segment_format import SEGMENT_VERSION
from sbp_core.session.negotiation import REPLICATION_VERSIONS, FeatureName
from sbp_spark.command import CHECKPOINT
from sbp_spark.reading.offsets import FORMAT_VERSION

CALLS = [
    *([each.name] for each in command.COMMANDS),
    ["txns", "give-up"],
    ["cluster", "drain"],
    ["backup", "check"],
    ["streams", "create"],
    ["streams", "list"],
    ["streams", "describe"],
    ["streams", "delete"],
    ["schema", "check"],
]


@pytest.mark.parametrize("words", [[], *CALLS])
def test_every_command_has_help(capsys, words):
    assert command.main([*words, "--help"]) == 0
    assert "\n" + " ".join(["Usage: sbp", *words]) in "\n" + capsys.readouterr().out


def commands_below(found: click.Command, *names: str) -> Iterator[tuple[tuple[str, ...], Command]]:
    """Yield the commands that do something, and the words that call them."""
    if isinstance(found, Command):
        yield names, found
    context = click.Context(found)
    if isinstance(found, click.Group):
        actions = {each: found.get_command(context, each) for each in found.list_commands(context)}
    else:
        actions = getattr(found, "actions", {})
    for name, each in actions.items():
        yield from commands_below(each, *names, name)


def test_the_help_of_each_command_begins_with_an_example_that_can_be_parsed(capsys):
    found = list(commands_below(command.command([Listed(*CHECKPOINT)])))
    assert len(found) > 40
    for names, each in found:
        words = shlex.split(each.example)
        assert words[: len(names) + 1] == ["sbp", *names]
        rest = words[len(names) + 1 :]
        each.make_context(names[-1], rest, help_option_names=["-h", "--help"])
    assert command.main(["streams", "trim", "-h"]) == 0
    assert capsys.readouterr().out.startswith("Example: sbp streams trim orders 5000\n\nUsage: ")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["serv"], "Did you mean 'serve'?"),
        (["txns", "--endpiont"], "Did you mean '--endpoint'?"),
        (["server"], "'server'"),
        (["backup", "lst"], "Did you mean 'list'?"),
        (["backup", "/tmp/backups"], "The actions are create, list, check, prune"),
        (["streams", "create"], "'NAME'"),
        (["streams", "create", "a", "--count", "0"], "'0' is not a whole number, 1 or more"),
        (["streams", "create", "a", "--count", "-1"], "--count"),
        (["streams", "create", "a", "--replicas", "x"], "'x' is not a whole number, 1 or more"),
        (["streams", "create", "a", "--retention", "7"], "7d"),
        (["streams", "create", "a", "--retention", "1.5h"], "'1.5h'"),
        (["streams", "create", "a", "--retention", "\u0661d"], "'\u0661d'"),
        (["streams", "create", "a", "--retention", "9" * 19 + "d"], "64-bit"),
        (["streams", "create", "a", "--retention-size", "10GB"], "10GiB"),
        (["streams", "create", "a", "--retention-size", "1.5GiB"], "1.5GiB"),
        (["streams", "update", "a", "--retention-size", "9" * 19 + "TiB"], "64-bit"),
        (["streams", "delete"], "NAME_OR_ID"),
        (["produce", "a", "--key-separator", ""], "empty"),
        (["consume"], "STREAM"),
        (["consume", "a", "--from", "-2x"], "'-2x' is not earliest, latest, an offset, -N"),
        (["consume", "a", "--to", "first"], "'first' is not earliest, latest, an offset, -N"),
        (["consume", "a", "--last", "1", "--from", "1"], "--from is not allowed with --last"),
        (["consume", "a", "-f", "--to", "1"], "--follow is not allowed with --to"),
        (["consume", "a", "--json", "--format", "csv"], "--format is not allowed with --json"),
        (["consume", "a", "--from", "5", "--to", "3"], "exchange them"),
        (["consume", "a", "--from", "-10m", "--to", "-20m"], "exchange them"),
        (["consume", "a", "--from=-5", "--to=-10"], "exchange them"),
        (["streams", "copy", "a", "b", "--from", "latest", "--to", "earliest"], "exchange them"),
        (["consume", "a", "--format", "text"], "'text' is not one of 'lines', 'json', 'csv'"),
        (["consume", "a", "--columns", "b,"], "'b,' is not a list of columns"),
        (["consume", "a", "--from", str(2**63)], str(2**63)),
        (["consume", "a", "--max", "0"], "--max"),
        (["consume", "a", "--from-timestamp", "noon"], "'noon' is not a time since 1970"),
        (["consume", "a", "--from-timestamp", "1969-12-31T23:59"], "1969"),
        (["consume", "a", "--from-timestamp", "0001-01-01T00:00+14:00"], "0001"),
        (["consume", "a", "--from", "1", "--from-timestamp", "2025-01-31"], "not allowed with"),
        (["serve", "--pd-port", "x"], "--pd-port"),
        (["serve", "--pd-port", "9" * 5_000], "999...' is not an integer"),
        (["serve", "--range-server-port", "\u0661"], "is not an integer"),
        (["serve", "--data-dir", ""], "the path is empty"),
        (["serve", "--ready-file", ""], "the path is empty"),
        (["serve", "--config", ""], "the path is empty"),
        (["log", "check", ""], "the path is empty"),
        (["schema", "check", "a", ""], "the path is empty"),
        (["streams", "create", "a", "--retention", "9" * 5_000 + "d"], "--retention"),
        (["streams", "create", "a", "--retention-size", "9" * 5_000 + "TiB"], "--retention-size"),
        (["ping", "\x1b[2J\u202e"], "\\x1b[2J\\u202e"),
        (["ping", "--unknown"], "--unknown"),
        (["streams", "create", "a", "--retentoin", "7d"], "'--retention'"),
    ],
)
def test_a_mistake_in_the_call_is_one_line_and_exit_code_2(capsys, words, named):
    assert command.main(words) == 2
    printed = capsys.readouterr()
    assert named in printed.err
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert len(printed.err) < 400


@pytest.mark.parametrize("words", [[], ["streams"], ["backup"]])
def test_a_call_without_a_command_prints_the_help(capsys, words):
    assert command.main(words) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.splitlines()[0][:10]) == ("", "Usage: sbp")
    assert "Commands:" in printed.err


@pytest.mark.parametrize("words", [[], ["streams"], ["streams", "create"], ["txns", "give-up"]])
def test_h_is_help(capsys, words):
    helps = []
    for option in ("-h", "--help"):
        assert command.main([*words, option]) == 0
        helps.append(capsys.readouterr().out)
    assert helps[0] == helps[1]


def test_versions(capsys):
    assert command.main(["--version"]) == 0
    assert capsys.readouterr().out == f"sbp {__version__}\n"
    assert command.main(["--version", "--verbose"]) == 0
    first, *others = capsys.readouterr().out.splitlines()
    assert first == f"sbp {__version__}"
    found = dict(line.split(maxsplit=1) for line in others)
    assert found == {
        "log": str(SEGMENT_VERSION),
        "metadata": f"{SCHEMA_VERSION}, upgraded from {SCHEMA_VERSION_BEFORE}",
        "checkpoint": f"{FORMAT_VERSION}, read from 1 on",
        "protocol": "SBP 0.1",
        "features": ", ".join(FeatureName),
        "replication": ", ".join(map(str, REPLICATION_VERSIONS)),
        "python": platform.python_version(),
        "pyarrow": pa.__version__,
        "pyspark": metadata.version("pyspark"),
        "platform": platform.platform(),
    }


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [("0", 0), ("90s", 90_000), ("30m", 1_800_000), ("12h", 43_200_000), ("7d", 604_800_000)],
)
def test_durations(text, duration_ms):
    assert DURATION_MS.convert(text, None, None) == duration_ms
    assert duration_ms == 0 or show_duration(duration_ms) == text


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("0", 0), ("7KiB", 7168), ("500MiB", 524_288_000), ("10GiB", 10 * 2**30), ("2TiB", 2**41)],
)
def test_sizes(text, size_bytes):
    assert SIZE.convert(text, None, None) == size_bytes
    assert size_bytes == 0 or show_size(size_bytes) == text


def test_lengths_without_a_whole_unit():
    assert (show_duration(1_500), show_size(1_500)) == ("1500ms", "1500B")


@pytest.mark.parametrize(
    ("limits_set", "text"),
    [((0, 0), "for ever"), ((90_000, 0), "90s"), ((0, 7168), "7KiB"), ((1, 1), "1ms, 1B")],
)
def test_a_retention_names_its_limits(limits_set, text):
    assert show_retention(*limits_set) == text


ERRORS = {
    2: ConfigurationError("wrong\nsetting"),
    1: SbpError("broken\x1b[2J server"),
    130: KeyboardInterrupt(),
}


@click.command()
@click.argument("exit_code", type=int)
def failing(exit_code):
    raise ERRORS[exit_code]


@pytest.mark.parametrize(
    ("exit_code", "printed"),
    [(2, "sbp: wrong setting\n"), (1, "sbp: broken\\x1b[2J server\n"), (130, "")],
)
def test_errors_become_exit_codes(capsys, exit_code, printed):
    more = [Listed("failing", f"{__name__}:failing", "Fail.")]
    assert command.main(["failing", str(exit_code)], more=more) == exit_code
    assert capsys.readouterr().err == printed


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["p", "7"], "unexpected extra argument (7)"),
        (["give-up", "p"], "Missing argument 'BATCH'"),
        (["give-up", "p", "x"], "'x' is not a whole number, 0 or more"),
        (["give-up", "p", "-1"], "No such option '-1'"),
        (["give-up", "p", "--", "-1"], "'-1' is not a whole number, 0 or more"),
        (["give-up", "p", str(2**63)], "is not a whole number, 0 or more"),
        (["give-up", "p", 5_000 * "9"], "is not a whole number, 0 or more"),
        (["give-up", "p", "7", "8"], "unexpected extra argument (8)"),
    ],
)
def test_wrong_arguments_of_txns_are_refused(capsys, words, told):
    assert command.main(["txns", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line
    assert len(line) < 200


@click.command(cls=CommandWithActions, example="batches")
@click.argument("producer", required=False)
@client_options
def batches(options, producer):
    print("list", producer, options.endpoint)
    return 0


@batches.action("give-up", example="batches give-up p 7")
@click.argument("producer")
@click.argument("batch", type=NUMBER)
@client_options
def give_up(options, producer, batch):
    print("give up", producer, batch, options.endpoint)
    return 0


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (["give-up", "p", "7", "--endpoint", "h:1"], "give up p 7 h:1\n"),
        (["give-up", "--endpoint", "h:1", "p", "7"], "give up p 7 h:1\n"),
        (["give-up", "p", "--endpoint", "h:1", "7"], "give up p 7 h:1\n"),
        (["--endpoint", "h:1", "--", "give-up"], "list give-up h:1\n"),
    ],
)
def test_options_of_actions_stand_anywhere(capsys, words, printed):
    more = [Listed("batches", f"{__name__}:batches", "List batches.")]
    assert command.main(["batches", *words], more=more) == 0
    assert capsys.readouterr().out == printed


def test_notes_of_an_error_stand_in_its_line(capsys):
    error = SbpError("broken")
    error.add_note("acknowledged before: 3 records")
    output.write_error(error)
    assert capsys.readouterr().err == "sbp: broken; acknowledged before: 3 records\n"


def test_the_endpoint_comes_from_the_option_the_environment_or_the_default(monkeypatch):
    def endpoint(*words: str) -> object:
        return cluster_commands.ping.make_context("ping", [*words]).params["endpoint"]

    monkeypatch.delenv("SBP_ENDPOINT", raising=False)
    assert endpoint() == "127.0.0.1:12378"
    monkeypatch.setenv("SBP_ENDPOINT", "log.example.org:1")
    assert endpoint() == "log.example.org:1"
    assert endpoint("--endpoint", "other:2") == "other:2"


def test_an_endpoint_that_is_none_is_a_usage_error(capsys):
    assert command.main(["ping", "--endpoint", "nowhere"]) == 2
    assert "host:port" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["me:secret@host:1", "sbp://me:secret@host:1", "secret@", "@:1"])
def test_a_password_is_not_repeated(capsys, monkeypatch, text):
    assert command.main(["ping", "--endpoint", text]) == 2
    told = capsys.readouterr().err
    assert "leave out user and password" in told
    monkeypatch.setenv("SBP_ENDPOINT", text)
    assert command.main(["ping", "--help"]) == 0
    assert "secret" not in told + capsys.readouterr().out


def test_help_imports_neither_arrow_nor_the_client_nor_servers():
    """Help comes at once. A server blocks signals before its imports start threads."""
    program = (
        "import sys\n"
        "from sbp_spark.command import main\n"
        "heavy = {'pyarrow', 'numpy', 'sbp_core.client', 'sbp_core.cluster', 'fastapi'}\n"
        "for words in sys.argv[1:]:\n"
        "    main([*words.split(), '--help'])\n"
        "    if found := heavy & sys.modules.keys():\n"
        "        sys.exit(f'sbp {words} --help imports {found}')\n"
    )
    calls = ["", *(" ".join(each) for each in CALLS), "checkpoint"]
    done = subprocess.run(
        [sys.executable, "-c", program, *calls],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("Usage: sbp") == len(calls)


@click.command()
@click.argument("number", type=int)
def count(number: int) -> int:
    """Count to a number. It is declared outside the core's own table."""
    return number


def test_a_command_is_one_declaration(capsys):
    more = [Listed("count", f"{__name__}:count", "Count at once.")]
    assert command.main(["count", "7"], more=more) == 7
    for words, shown in ([], "Count at once."), (["count"], "Count to a number."):
        assert command.main([*words, "--help"], more=more) == 0
        assert shown in capsys.readouterr().out


def test_only_the_file_of_the_command_that_is_called_is_imported():
    program = (
        "import sys\n"
        "from sbp_core.cli.main import COMMANDS, main\n"
        "files = {each.declared_in.partition(':')[0] for each in COMMANDS}\n"
        "assert not files & sys.modules.keys()\n"
        "main(['ping', '--help'])\n"
        "print(*sorted(files & sys.modules.keys()), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr.split() == ["sbp_core.cli.cluster_commands"]


@pytest.mark.parametrize("words", [["ping"], ["streams", "list"], ["txns", "give-up"]])
def test_a_command_line_may_begin_with_two_dashes(capsys, words):
    helps = []
    for begin in ([], ["--"]):
        assert command.main([*begin, *words, "--help"]) == 0
        helps.append(capsys.readouterr().out)
    assert helps[0] == helps[1]


@pytest.mark.parametrize(
    ("text", "ref"), [("orders", "orders"), ("7", 7), ("007x", "007x"), ("\u0663", "\u0663")]
)
def test_digits_are_an_id(text, ref):
    assert parse_stream(text) == ref


def test_an_id_has_63_bits():
    assert parse_stream(str(2**63 - 1)) == 2**63 - 1
    with pytest.raises(ConfigurationError):
        parse_stream(str(2**63))


def test_why_a_server_failed_is_not_hidden_by_a_stop_that_fails_too(caplog):
    class Full:
        async def stop(self):
            raise LogWriteError("no space")

    async def serve(error=None):
        async with stopped_at_end(Full()):
            if error is not None:
                raise error

    with pytest.raises(LogCorruptionError):
        asyncio.run(serve(LogCorruptionError("damaged")))
    assert "no space" in caplog.text
    with pytest.raises(LogWriteError):
        asyncio.run(serve())


@pytest.mark.parametrize("words", [["--interval", "2d"], ["--file-bytes", "1KiB"]])
def test_bounds_of_the_lake_are_told(words, capsys):
    assert command.main(["lake", *words]) == 2
    assert "--interval is 1s to 1d" in capsys.readouterr().err

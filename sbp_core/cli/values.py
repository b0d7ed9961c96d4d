"""The types of options and arguments: texts that become values, or are refused with a reason.

Commands that run servers import this before anything that starts threads, so it imports no client.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Final

import click
from click.shell_completion import CompletionItem

from sbp_core import quantities
from sbp_core.errors import ConfigurationError
from sbp_core.quantities import is_offset, quoted


class Value(click.ParamType[object]):
    """Text that `parse` turns into a value; `name` stands for it in the help.

    A ConfigurationError of `parse` refuses the text.
    """

    def __init__(self, name: str, parse: Callable[[str], object]) -> None:
        self.name = name
        self._parse = parse

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> object:
        """Return the value of a text; a default may be one already."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ConfigurationError as error:
            self.fail(str(error), param, ctx)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Return the name: it is in capitals already."""
        return self.name


class PathValue(Value):
    """Text that can be the path of a file or folder. Shells complete it."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Let the shell complete the names of files and folders."""
        return [CompletionItem(incomplete, type="file")]


class StreamValue(click.ParamType[str]):
    """The name or id of a stream. Shells complete the names, if a cluster answers at once."""

    name = "STREAM"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the names that begin so, as the options before them reach a cluster; or none."""
        from sbp_core.cli.stream_names import find_names

        return [CompletionItem(name) for name in find_names(ctx.params, incomplete)]


def parse_path(text: str) -> str:
    """Return the path of a file or folder. Raises ConfigurationError if the text cannot be one."""
    if not text:  # it would be the working directory
        raise ConfigurationError("the path is empty; write . for the working directory")
    if "\0" in text:
        raise ConfigurationError(f"{quoted(text)} is not a path: it has a NUL character")
    return text


def _parse_integer(text: str) -> int:
    if not is_offset(text.removeprefix("-")):
        raise ConfigurationError(f"{quoted(text)} is not an integer")
    return int(text)


def _parse_number(least: int, text: str) -> int:
    if not is_offset(text) or int(text) < least:
        raise ConfigurationError(f"{quoted(text)} is not a whole number, {least} or more")
    return int(text)


def _parse_patience(text: str) -> float:
    return math.inf if text == "off" else quantities.parse_duration_ms(text)


def _parse_position(text: str) -> object:
    from sbp_core.operating.stream_position import parse_position

    return parse_position(text)


PATH: Final = PathValue("PATH", parse_path)
INTEGER: Final = Value("N", _parse_integer)
"""An integer of at most 64 bits; the setting checks its range."""
NUMBER: Final = Value("N", partial(_parse_number, 0))
"""A whole number, 0 or more."""
POSITIVE: Final = Value("N", partial(_parse_number, 1))
"""A whole number, 1 or more."""
DURATION_MS: Final = Value("TIME", quantities.parse_duration_ms)
"""A time such as 90s, 30m, 12h or 7d; the value is in ms."""
PATIENCE_MS: Final = Value("TIME|off", _parse_patience)
"""A time for which something is tried, in ms; off is for ever."""
SIZE: Final = Value("SIZE", quantities.parse_size)
"""A size such as 500MiB or 10GiB; the value is in bytes."""


def check_interval(start: int, end: int) -> None:
    """Raise ConfigurationError for offsets of --from and --to that are the wrong way round."""
    if start > end:
        raise ConfigurationError(
            f"--from is offset {start}, behind --to, which is offset {end}: exchange them"
        )


POSITION: Final = Value("POSITION", _parse_position)
"""A position in a stream: earliest, latest, an offset, -N, or a time."""
STREAM: Final = StreamValue()
TIMESTAMP: Final = Value("TIME", quantities.parse_timestamp)
"""A time since 1970, as a `datetime`; one without a zone is UTC."""

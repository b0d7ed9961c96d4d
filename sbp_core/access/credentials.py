"""The token of a client: where it is, names which may be logged and stored; or the token itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sbp_core.errors import ConfigurationError

TOKEN_BYTES_MAX: Final = 8 * 1024
"""Bytes of a token."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """The file with the token, or the environment variable: one of them.

    The process that connects reads it, as a connection is made and before the identity of one ends.
    Raises ConfigurationError if both are given, or none.
    """

    token_file: str | Path | None = None
    token_env: str | None = None

    def __post_init__(self) -> None:
        if (self.token_file is None) == (self.token_env is None):
            raise ConfigurationError(
                "credentials: give the file of the token (token_file) or the name of its"
                " environment variable (token_env), one of them"
            )

    def __str__(self) -> str:
        if self.token_env is not None:
            return f"environment variable {self.token_env}"
        return f"token file {self.token_file}"


@dataclass(frozen=True, slots=True)
class BearerToken:
    """The token itself, of a process that acts for others; it is never shown.

    A server that wants no identities is refused: it would do everything for any token.
    """

    value: bytes = field(repr=False)

    def __str__(self) -> str:
        return "token of the request"

"""The token of a client: where it is, and how it is read. The token itself is a secret.

A `Credentials` has names only, so it may be logged, stored and sent to other processes. The process
that connects reads the token, at that moment.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sbp_core.errors import ConfigurationError
from sbp_core.regular_files import read_regular

TOKEN_BYTES_MAX: Final = 8 * 1024
"""Bytes of a token."""
_TOKEN: Final = re.compile(rb"[A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True)
class Credentials:
    """The file with the token, or the environment variable: one of them.

    They are read as a connection is made, and before the identity of one ends. Raises
    ConfigurationError if both are given, or none.
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

    def read(self) -> bytes:
        """Return the token. Raises ConfigurationError, which does not show it, without one."""
        if self.token_env is not None:
            found = os.environb.get(os.fsencode(self.token_env), b"")
        else:
            try:
                found = read_regular(Path(str(self.token_file)), TOKEN_BYTES_MAX + 2)
            except OSError as error:
                raise ConfigurationError(
                    f"{self} cannot be read: {error.strerror}; name a file that this user may read"
                ) from error
        token = found.strip()
        if len(token) > TOKEN_BYTES_MAX or not _TOKEN.fullmatch(token):
            raise ConfigurationError(
                f"{self} has no token; put a signed JSON Web Token there, {TOKEN_BYTES_MAX} bytes"
                " at most"
            )
        return token

"""An issuer of tokens of a test's own."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sbp_core.access.keys import new_key, sign

ISSUER = "https://id.example.org"
AUDIENCE = "sbp"


@dataclass
class Issuer:
    """Signs tokens with one key for each algorithm; its set is in `jwks_file`."""

    folder: Path
    algorithms: tuple[str, ...] = ("EdDSA",)
    private: dict[str, dict[str, Any]] = field(default_factory=dict)
    public: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for algorithm in self.algorithms:
            self.private[algorithm], public = new_key(algorithm)
            self.public.append(public)
        self.jwks_file = self.folder / "jwks.json"
        self.jwks_file.write_bytes(self.jwks)

    @property
    def jwks(self) -> bytes:
        return json.dumps({"keys": self.public}).encode()

    def claims(self, subject: object = "etl", *, seconds: float = 600, **other: Any) -> dict:
        """Return what a good token says; a value of None is left out."""
        now = int(time.time())
        found = {"iss": ISSUER, "aud": AUDIENCE, "sub": subject, "exp": now + seconds} | other
        return {name: value for name, value in found.items() if value is not None}

    def sign(self, payload: bytes, algorithm: str | None = None) -> bytes:
        return sign(self.private[algorithm or self.algorithms[0]], payload).encode()

    def token(self, subject: object = "etl", algorithm: str | None = None, **claims: Any) -> bytes:
        """Return a token, a good one unless `claims` say otherwise."""
        return self.sign(json.dumps(self.claims(subject, **claims)).encode(), algorithm)

"""The jars of Kafka and of Spark's connector for it: pinned, fetched once, checked every time."""

from __future__ import annotations

import hashlib
import os
import tempfile
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Final

from sbp_spark.java import default_cache

REPOSITORY_VARIABLE: Final = "SBP_BENCH_MAVEN_REPOSITORY"
REPOSITORY_DEFAULT: Final = "https://repo1.maven.org/maven2"
TIMEOUT_S: Final = 60

_LISTS: Final = Path(__file__).parent


class PeerAbsentError(Exception):
    """The peer cannot be measured here; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Jar:
    """One file of a Maven repository; `sha256` is in hexadecimal digits."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        """The name of the file in the repository and in the cache."""
        return f"{self.artifact}-{self.version}.jar"

    def address(self, repository: str) -> str:
        """Return where a repository has the file."""
        folder = f"{self.group.replace('.', '/')}/{self.artifact}/{self.version}"
        return f"{repository.rstrip('/')}/{folder}/{self.file_name}"

    def is_intact(self, content: bytes) -> bool:
        """Return whether this is the pinned file."""
        return hashlib.sha256(content).hexdigest() == self.sha256


@dataclass(frozen=True, slots=True)
class Pinned:
    """The jars of the two processes: the broker's, and those that Spark is given."""

    broker: tuple[Jar, ...]
    connector: tuple[Jar, ...]

    @staticmethod
    def load() -> Pinned:
        """Return what the lists beside this file name."""
        broker, connector = (
            parse_jars((_LISTS / name).read_text(encoding="utf-8"))
            for name in ("broker.txt", "connector.txt")
        )
        return Pinned(broker, connector)

    @property
    def broker_version(self) -> str:
        """The version of Kafka."""
        return next(jar.version for jar in self.broker if jar.artifact == "kafka_2.13")


def parse_jars(text: str) -> tuple[Jar, ...]:
    """Return the jars of a list. Raises ValueError where a line is none of its own form."""
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    jars = []
    for line in lines:
        sha256, coordinates = line.split()
        group, artifact, version = coordinates.split(":")
        jars.append(Jar(group, artifact, version, sha256))
    return tuple(jars)


def ensure_jars(
    jars: Sequence[Jar], cache: Path | None = None, *, report: Callable[[str], None]
) -> tuple[Path, ...]:
    """Return the files of the jars, fetching those that `cache` does not have.

    By default the cache is `sbp-spark/jars` in $XDG_CACHE_HOME or ~/.cache, and the repository is
    Maven Central, or the one that $SBP_BENCH_MAVEN_REPOSITORY names. Raises PeerAbsentError when a
    file cannot be had or is not the one that was pinned.
    """
    folder = cache or default_cache("jars")
    repository = os.environ.get(REPOSITORY_VARIABLE) or REPOSITORY_DEFAULT
    files = tuple(folder / jar.file_name for jar in jars)
    missing = [(jar, file) for jar, file in zip(jars, files, strict=True) if not _is_in(file, jar)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for index, (jar, file) in enumerate(missing, start=1):
            report(f"fetching jar {index} of {len(missing)}: {jar.file_name}")
            _fetch(jar.address(repository), jar, file)
    except OSError as error:
        raise PeerAbsentError(f"{folder} cannot be written: {error}") from error
    return files


def _is_in(file: Path, jar: Jar) -> bool:
    return file.exists() and jar.is_intact(file.read_bytes())


def _fetch(address: str, jar: Jar, file: Path) -> None:
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT_S) as answer:
            content = answer.read()
    except (OSError, HTTPException) as error:
        raise PeerAbsentError(f"{address}: {error}") from error
    if not jar.is_intact(content):
        raise PeerAbsentError(f"{address}: not the file with the SHA-256 {jar.sha256}")
    with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as partial:
        partial.write(content)
    Path(partial.name).rename(file)

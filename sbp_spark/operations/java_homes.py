"""Finding a Java that Spark can run on, or installing one without asking (`sbp_spark.java`).

Spark 4.3 needs Java 17 or newer with the module jdk.incubator.vector, which reduced runtimes lack.
`python -m sbp_spark.java` prints the JAVA_HOME and nothing else; progress goes to stderr.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sbp_core.errors import ConfigurationError

VERSION_MIN: Final = 17
MODULE_NEEDED: Final = "jdk.incubator.vector"
SYSTEM_HOMES: Final = Path("/usr/lib/jvm")
PROBE_TIMEOUT_S: Final = 30
INSTALL_TIMEOUT_S: Final = 900

_APT_LOCK: Final = "-oDPkg::Lock::Timeout=120"


@dataclass(frozen=True, slots=True)
class PackageManager:
    """How a Linux distribution installs packages, and its packages of Java, best first."""

    command: tuple[str, ...]
    refresh: tuple[str, ...]
    install: tuple[str, ...]
    packages: tuple[str, ...]


PACKAGE_MANAGERS: Final = {
    "apt-get": PackageManager(
        command=("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qy", _APT_LOCK),
        refresh=("update",),
        install=("install", "--no-install-recommends"),
        packages=("openjdk-17-jre-headless", "openjdk-21-jre-headless"),
    ),
    "dnf": PackageManager(
        command=("dnf", "-q", "-y"),
        refresh=("makecache",),
        install=("install",),
        packages=("java-17-openjdk-headless", "java-21-openjdk-headless"),
    ),
    "apk": PackageManager(
        command=("apk", "-q"),
        refresh=("update",),
        install=("add",),
        packages=("openjdk17-jre-headless", "openjdk21-jre-headless"),
    ),
}

# In a process of its own, because the library's download knows no deadline.
_DOWNLOAD: Final = "import sys, jdk; jdk.install(sys.argv[1], jre=True, path=sys.argv[2])"


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine to find a Java on: where its packages put Javas, and who may install them."""

    system_homes: Path = SYSTEM_HOMES
    is_root: bool = field(default_factory=lambda: os.geteuid() == 0)


def find_java(machine: Machine | None = None) -> Path | None:
    """Return the home of a Java that Spark can run on, None when there is none.

    Looks at JAVA_HOME, then PATH, then where Linux packages put Java. A Java that is too old or
    lacks a module is passed over.
    """
    return _maybe_suitable(_installed_launchers(machine or Machine()))


def ensure_java(cache: Path | None = None, machine: Machine | None = None) -> Path:
    """Return the home of a Java that Spark can run on, installing one when none is found.

    `cache` holds downloaded Javas, and a later call finds them there; by default it is
    `sbp-spark/java` in $XDG_CACHE_HOME or ~/.cache. Without a download, the system's package
    manager installs one, where this user may. Raises ConfigurationError when that fails too.
    """
    cache = cache or default_cache("java")
    machine = machine or Machine()
    home = find_java(machine) or _maybe_suitable(_launchers_in(cache))
    if home is not None:
        return home
    _report(f"no Java {VERSION_MIN} or newer found: installing one")
    faults = []
    for way, install in (("download", _download), ("packages", _install_package)):
        _report(f"{way}: started")
        try:
            return install(cache, machine)
        except ConfigurationError as error:
            faults.append(f"{way}: {error}")
            _report(faults[-1])
    raise ConfigurationError(
        f"no Java {VERSION_MIN} or newer with the module {MODULE_NEEDED} was found in JAVA_HOME,"
        f" PATH or {machine.system_homes}, and none could be installed ({'; '.join(faults)}):"
        " install one, e.g. `sudo apt-get install openjdk-17-jre-headless`, or set JAVA_HOME"
    )


def use_java(machine: Machine | None = None) -> Path:
    """Ensure a Java, name it to Spark in os.environ["JAVA_HOME"], and return its home."""
    home = ensure_java(machine=machine)
    os.environ["JAVA_HOME"] = str(home)
    return home


def default_cache(name: str) -> Path:
    """Return the folder for downloads of one kind: below $XDG_CACHE_HOME, or else ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "sbp-spark" / name


def _installed_launchers(machine: Machine) -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home, "bin", "java")
    if launcher := shutil.which("java"):
        yield Path(launcher)
    yield from _launchers_in(machine.system_homes)


def _launchers_in(folder: Path) -> Iterator[Path]:
    for place in ("bin/java", "Contents/Home/bin/java"):  # the latter on macOS
        yield from sorted(folder.glob(f"[!.]*/{place}"))


def _maybe_suitable(launchers: Iterator[Path]) -> Path | None:
    return next(filter(None, map(_maybe_home, launchers)), None)


def _maybe_home(launcher: Path) -> Path | None:
    """Ask a `java` for its home, version and modules; None when Spark cannot run on it."""
    command = [str(launcher), "-XshowSettings:properties", "--list-modules"]
    try:
        probe = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    settings = probe.stderr.decode(errors="replace")
    modules = {line.partition("@")[0] for line in probe.stdout.decode(errors="replace").split()}
    version = re.search(r"^\s*java\.specification\.version = (\d+)$", settings, re.MULTILINE)
    home = re.search(r"^\s*java\.home = (.+)$", settings, re.MULTILINE)
    if not version or not home or int(version[1]) < VERSION_MIN or MODULE_NEEDED not in modules:
        return None
    return Path(home[1].strip())


def _download(cache: Path, _machine: Machine) -> Path:
    """Install a Java into `cache` with the package install-jdk: all of it, or nothing."""
    if importlib.util.find_spec("jdk") is None:
        raise ConfigurationError("the Python package install-jdk is not installed")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=".java-") as folder:
            staging = Path(folder, "java")
            arguments = [str(VERSION_MIN), str(staging)]
            _run([sys.executable, "-c", _DOWNLOAD, *arguments], {"TMPDIR": folder})
            if _maybe_suitable(_launchers_in(staging)) is None:
                raise ConfigurationError("Spark cannot run on the downloaded Java here")
            next(staging.iterdir()).rename(cache / Path(folder).name.removeprefix("."))
    except OSError as error:
        raise ConfigurationError(f"cannot write to {cache}: {error.strerror}") from error
    home = _maybe_suitable(_launchers_in(cache))
    assert home is not None
    return home


def _install_package(_cache: Path, machine: Machine) -> Path:
    """Install a Java with the system's package manager, as root or by sudo without a password."""
    name = next((name for name in PACKAGE_MANAGERS if shutil.which(name)), None)
    if name is None:
        raise ConfigurationError(f"none of {', '.join(PACKAGE_MANAGERS)} is on PATH")
    manager = PACKAGE_MANAGERS[name]
    command = [*_elevation(name, is_root=machine.is_root), *manager.command]
    faults = []
    with suppress(ConfigurationError):  # a stale list of packages may still do
        _run([*command, *manager.refresh])
    for package in manager.packages:
        try:
            _run([*command, *manager.install, package])
        except ConfigurationError as error:
            faults.append(f"{package}: {error}")
            continue
        home = find_java(machine)
        if home is not None:
            return home
        faults.append(f"{package}: installed, but no Java that Spark can run on")
    raise ConfigurationError("; ".join(faults))


def _elevation(manager: str, *, is_root: bool) -> tuple[str, ...]:
    if is_root:
        return ()
    sudo = ("sudo", "-n")
    if shutil.which("sudo") is None:
        raise ConfigurationError(f"{manager}: needs root, and there is no sudo")
    try:
        _run([*sudo, "true"])
    except ConfigurationError as error:
        raise ConfigurationError(f"{manager}: needs root, and sudo asks for a password") from error
    return sudo


def _run(command: Sequence[str], settings: Mapping[str, str] | None = None) -> None:
    """Run a command to its end; ConfigurationError with its last line when it fails."""
    try:
        subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ | (settings or {}),
            timeout=INSTALL_TIMEOUT_S,
            check=True,
        )
    except subprocess.CalledProcessError as error:
        lines = error.stdout.decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
        raise ConfigurationError(f"exit status {error.returncode}: {last}") from error
    except OSError as error:
        raise ConfigurationError(f"{command[0]}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise ConfigurationError(f"not finished after {INSTALL_TIMEOUT_S} s") from error


def _report(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def main(machine: Machine | None = None) -> int:
    """Print the home of a Java for Spark; return the exit status."""
    try:
        print(ensure_java(machine=machine))
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return 1
    return 0

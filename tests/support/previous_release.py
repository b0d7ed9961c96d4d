"""The release before this one, built from the repository: its `sbp` runs beside this one's."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
BUILDS = ROOT / ".cache" / "previous-release"

PREVIOUS = "v0.1.0", "1ad000462a687633afe08735acc83e253e6bef06"
"""Its tag, and the commit of that, which counts where tags were not copied."""


class Release:
    """A release of which `folder` has the packages; dependencies are those of the tests."""

    def __init__(self, folder: Path) -> None:
        self._python = ["env", f"PYTHONPATH={folder}", sys.executable, "-P"]
        self.command = [*self._python, "-m", "sbp_core.cli.main"]
        """The words that run `sbp`."""
        found = Path(self.evaluate("sbp_core", "sbp_core.__file__"))
        assert found.is_relative_to(folder), found

    def evaluate(self, module: str, expression: str) -> str:
        """Return what an expression is there, as `print` writes it."""
        code = f"import {module}; print({expression})"
        return output([*self._python, "-c", code]).decode().strip()


def previous_release() -> Release:
    """Build it, or find it built. Skips the test if the repository does not have it."""
    commit = _commit()
    folder = BUILDS / commit
    if not folder.exists():
        BUILDS.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=BUILDS, prefix="building-") as made:
            _build(commit, Path(made))
            with suppress(OSError):  # another run was first
                (Path(made) / "packages").rename(folder)
    return Release(folder)


def this_release() -> Release:
    """The one that is tested."""
    return Release(ROOT)


def output(words: Sequence[str | Path], cwd: Path | None = None) -> bytes:
    """Return what a command prints; fail with its errors if it does."""
    run = subprocess.run(words, cwd=cwd, capture_output=True, check=False)
    assert run.returncode == 0, run.stderr.decode(errors="replace")
    return run.stdout


def _commit() -> str:
    for revision in PREVIOUS if shutil.which("git") else ():
        words = ["git", "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"]
        run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        if run.returncode == 0:
            return run.stdout.strip()
    pytest.skip(f"the release before this one is not in the repository: {' or '.join(PREVIOUS)}")


def _build(commit: str, folder: Path) -> None:
    source = folder / "source"
    with tarfile.open(fileobj=io.BytesIO(output(["git", "archive", commit], cwd=ROOT))) as archive:
        archive.extractall(source, filter="data")
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    output([*pip, "--wheel-dir", folder, "."], cwd=source)
    (wheel,) = folder.glob("*.whl")
    with ZipFile(wheel) as packages:
        packages.extractall(folder / "packages")

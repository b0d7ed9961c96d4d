"""Finding a Java, and each way of getting one, with stand-ins for `java` and the installers."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sbp_core.errors import ConfigurationError
from sbp_spark.operations import java_homes as java


def write_script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def write_java(home: Path, version: str = "17", modules: str = "jdk.incubator.vector@17") -> Path:
    text = (
        f"echo '    java.home = {home}' >&2\n"
        f"echo '    java.specification.version = {version}' >&2\n"
        f"printf 'java.base@17\\n{modules}\\n'\n"
    )
    write_script(home / "bin" / "java", text)
    return home


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A machine without any Java; returns its only folder of commands."""
    commands = tmp_path / "bin"
    commands.mkdir()
    monkeypatch.setenv("PATH", str(commands))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "packages").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    let_download_fail(tmp_path, "no network")
    return commands


@pytest.fixture
def machine(tmp_path):
    """The bare machine, as a user who is not root."""
    return java.Machine(system_homes=tmp_path / "jvm", is_root=False)


def let_download_fail(tmp_path, message):
    """Stand in for the package install-jdk, which the child process imports."""
    (tmp_path / "packages" / "jdk.py").write_text(
        f"def install(version, jre, path):\n    raise SystemExit({message!r})\n"
    )


def let_download_give(tmp_path, version="17"):
    """Stand in for the package install-jdk: it copies a Java below the folder it is given."""
    made = write_java(tmp_path / "made", version)
    (tmp_path / "packages" / "jdk.py").write_text(
        "import os, shutil\n"
        "def install(version, jre, path):\n"
        "    assert version == '17' and jre\n"
        f"    shutil.copytree({str(made)!r}, os.path.join(path, 'jdk-17-jre'))\n"
        "    open(os.path.join(os.environ['TMPDIR'], 'archive.tar.gz'), 'w').close()\n"
    )
    return made


def test_java_home_comes_before_path(bare, machine, tmp_path, monkeypatch):
    named = write_java(tmp_path / "named")
    on_path = write_java(tmp_path / "on_path")
    monkeypatch.setenv("PATH", f"{on_path}/bin")
    assert java.find_java(machine) == on_path
    monkeypatch.setenv("JAVA_HOME", str(named))
    assert java.find_java(machine) == named


def test_the_home_is_what_java_itself_says(bare, machine, tmp_path):
    home = write_java(tmp_path / "real")
    (bare / "java").symlink_to(write_script(tmp_path / "shim", f"exec {home}/bin/java"))
    assert java.find_java(machine) == home


@pytest.mark.parametrize(
    ("version", "modules"),
    [("11", "jdk.incubator.vector@11"), ("1.8", ""), ("21", "java.sql@21")],
)
def test_an_unsuitable_java_is_passed_over(bare, machine, tmp_path, monkeypatch, version, modules):
    monkeypatch.setenv("JAVA_HOME", str(write_java(tmp_path / "named", version, modules)))
    assert java.find_java(machine) is None
    good = write_java(tmp_path / "jvm" / "java-21", "21")
    assert java.find_java(machine) == good


@pytest.mark.parametrize("text", ["exit 1\n", "echo nonsense\n"])
def test_a_java_that_does_not_work_is_passed_over(bare, machine, tmp_path, monkeypatch, text):
    write_script(bare / "java", text)
    assert java.find_java(machine) is None
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    assert java.find_java(machine) is None


def test_a_download_is_kept_and_found_again(bare, machine, tmp_path, capsys):
    made = let_download_give(tmp_path)
    assert java.ensure_java(machine=machine) == made
    cache = tmp_path / "cache" / "sbp-spark" / "java"
    (kept,) = cache.iterdir()
    assert (kept / "bin" / "java").exists()
    assert [path.name for path in kept.iterdir()] == ["bin"]
    let_download_fail(tmp_path, "a second download")
    assert java.ensure_java(machine=machine) == made
    assert capsys.readouterr().out == ""


def test_an_unsuitable_download_leaves_nothing(bare, machine, tmp_path):
    let_download_give(tmp_path, version="11")
    cache = tmp_path / "elsewhere"
    with pytest.raises(ConfigurationError, match="cannot run on the downloaded Java"):
        java.ensure_java(cache, machine)
    assert list(cache.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_named(bare, machine, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"cannot write to .*/file/java"):
        java.ensure_java(tmp_path / "file" / "java", machine)


@pytest.mark.parametrize("manager", sorted(java.PACKAGE_MANAGERS))
def test_the_package_manager_installs_the_first_package_it_knows(bare, machine, tmp_path, manager):
    machine = replace(machine, is_root=True)
    made = write_java(tmp_path / "made")
    target = tmp_path / "jvm" / "java"
    second = java.PACKAGE_MANAGERS[manager].packages[1]
    write_script(bare / "env", "shift\nexec " + '"$@"\n')
    write_script(
        bare / manager,
        f'echo "$@" >> {tmp_path}/calls\n'
        f'case "$*" in *{second}) /bin/mkdir -p {target}; /bin/cp -r {made}/bin {target};;\n'
        "*) echo E: unknown; exit 100;; esac\n",
    )
    assert java.ensure_java(machine=machine) == made
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) == 3  # the refresh (whose failure does no harm) and two packages


def test_sudo_is_used_when_it_asks_nothing(bare, machine, tmp_path):
    made = write_java(tmp_path / "made")
    write_script(bare / "sudo", 'shift\nexec "$@"\n')
    write_script(bare / "true", "")
    write_script(bare / "apk", f"exec /bin/ln -sfn {made} {tmp_path}/jvm/java\n")
    (tmp_path / "jvm").mkdir()
    assert java.ensure_java(machine=machine) == made


def test_the_fault_is_one_line_that_says_what_to_do(bare, machine, capsys):
    write_script(bare / "apt-get", "")
    write_script(bare / "sudo", "echo a password is required; exit 1\n")
    assert java.main(machine) == 1
    out, err = capsys.readouterr()
    last = err.splitlines()[-1]
    assert out == ""
    assert "download: exit status 1: no network" in last
    assert "packages: apt-get: needs root, and sudo asks for a password" in last
    assert "install one, e.g. `sudo apt-get install" in last


def test_without_install_jdk_the_download_says_so(bare, machine, monkeypatch):
    monkeypatch.setitem(sys.modules, "jdk", None)
    with pytest.raises(ConfigurationError, match="install-jdk is not installed"):
        java.ensure_java(machine=machine)


def test_use_java_names_it_to_spark(bare, machine, tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    home = write_java(tmp_path / "jvm" / "java")
    assert java.use_java(machine) == home
    assert os.environ["JAVA_HOME"] == str(home)


def test_the_command_prints_only_the_home(bare, machine, tmp_path):
    home = write_java(tmp_path / "home")
    told = subprocess.run(
        [sys.executable, "-m", "sbp_spark.java"],
        env={"JAVA_HOME": str(home), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (told.stdout, told.stderr) == (f"{home}\n", "")

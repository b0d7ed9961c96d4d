"""The packages that are installed are those that pyproject.toml asks for, file by file."""

import re
import tomllib
from collections import defaultdict

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from tidy_sources import ROOT

LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PYTHONS = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["project"]["classifiers"]))
PLATFORM = {
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
    "os_name": "posix",
    "platform_system": "Linux",
    "sys_platform": "linux",
}
PLATFORMS = [
    {
        **PLATFORM,
        "python_version": python,
        "python_full_version": f"{python}.0",
        "platform_machine": machine,
        "extra": "",
    }
    for python in PYTHONS
    for machine in ("x86_64", "aarch64")
]


def pins() -> list[tuple[Requirement, list[str]]]:
    """Return the requirements pinned by the lock, each with the hashes of its files."""
    entries = re.sub(r"^\s*#.*\n", "", LOCK, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    return [
        (Requirement(entry.partition("--hash")[0]), re.findall(r"--hash=(\S+)", entry))
        for entry in entries
    ]


def wanted(names: list[str]) -> list[Requirement]:
    """Return the requirements, with those of requested extras of this project in their place."""
    found = []
    for requirement in map(Requirement, names):
        if requirement.name != PROJECT["project"]["name"]:
            found.append(requirement)
            continue
        for extra in requirement.extras:
            found += wanted(PROJECT["project"]["optional-dependencies"][extra])
    return found


def applies(requirement: Requirement, platform: dict[str, str]) -> bool:
    return requirement.marker is None or requirement.marker.evaluate(platform)


@pytest.mark.parametrize(
    "platform", PLATFORMS, ids=lambda each: f"{each['python_version']}-{each['platform_machine']}"
)
def test_the_lock_has_what_is_asked_for(platform):
    locked = defaultdict(list)
    for pin, _ in pins():
        if applies(pin, platform):
            (only,) = pin.specifier
            assert only.operator == "=="
            locked[canonicalize_name(pin.name)].append(Version(only.version))
    project = PROJECT["project"]
    asked = wanted([*project["dependencies"], *project["optional-dependencies"]["dev"]])
    asked += map(Requirement, PROJECT["build-system"]["requires"])
    assert len(asked) > 20
    for requirement in asked:
        if applies(requirement, platform):
            (version,) = locked[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version), f"{requirement}: `make lock`"


def test_every_pin_has_the_hashes_of_its_files():
    assert len(pins()) > 60
    for pin, hashes in pins():
        assert hashes, pin
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", each) for each in hashes), pin


def test_the_lock_says_nothing_of_where_it_was_made():
    options = [line for line in LOCK.splitlines() if line.startswith("-")]
    assert (options, "://" in LOCK) == ([], False)

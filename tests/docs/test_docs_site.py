"""The documentation builds without a warning; a reader finds every page."""

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CLICKS_MAX = 3

pytestmark = pytest.mark.site


class Links(HTMLParser):
    """The links of a page, and the ids that links may lead to. Drawings are ignored."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.ids: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        if "id" in named:
            self.ids.add(named["id"])
        if tag == "a" and "href" in named and not re.match(r"\w+:", named["href"]):
            self.targets.append(unquote(named["href"]))


def build(source: Path, out: Path) -> subprocess.CompletedProcess[str]:
    words = ["--builder", "html", "--fresh-env", "--fail-on-warning", "--keep-going", "--quiet"]
    return subprocess.run(
        [sys.executable, "-m", "sphinx", *words, str(source), str(out)],
        capture_output=True,
        text=True,
        check=False,
    )


def copy_settings(folder: Path) -> None:
    shutil.copy(DOCS / "conf.py", folder)
    shutil.copytree(DOCS / "static", folder / "static")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    built = build(DOCS, out)
    assert built.returncode == 0, built.stderr
    return {page.relative_to(out): Links(page) for page in out.rglob("*.html")}


def led_to(page: Path, target: str) -> Path:
    """The page that a link leads to, relative to the site."""
    name = urldefrag(target).url
    parts: list[str] = []
    for part in (page.parent / name if name else page).parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return Path(*parts)


def test_every_page_is_reached_from_the_start_page_in_three_clicks(site):
    reached = seen = {Path("index.html")}
    for _ in range(CLICKS_MAX):
        seen = {led_to(page, link) for page in seen & site.keys() for link in site[page].targets}
        reached = reached | seen
    pages = {path.relative_to(DOCS).with_suffix(".html") for path in DOCS.rglob("*.md")}
    assert len(pages) > 40
    assert pages - reached == set()


def test_no_link_inside_the_site_is_dead(site):
    dead = []
    for page, links in site.items():
        for target in links.targets:
            to, anchor = led_to(page, target), urldefrag(target).fragment
            if to.suffix == ".html" and (to not in site or (anchor and anchor not in site[to].ids)):
                dead.append(f"{page}: {target}")
    assert dead == []


@pytest.mark.parametrize("what", ["[x](missing.md)", "[x](#missing)", "```{toctree}\nmissing\n```"])
def test_a_mistake_fails_the_build(tmp_path, what):
    copy_settings(tmp_path)
    (tmp_path / "index.md").write_text(f"# Start\n\n{what}\n", encoding="utf-8")
    assert build(tmp_path, tmp_path / "out").returncode != 0


def test_a_page_in_no_list_fails_the_build(tmp_path):
    copy_settings(tmp_path)
    (tmp_path / "index.md").write_text("# Start\n", encoding="utf-8")
    assert build(tmp_path, tmp_path / "right").returncode == 0
    (tmp_path / "other.md").write_text("# Other\n", encoding="utf-8")
    assert build(tmp_path, tmp_path / "wrong").returncode != 0

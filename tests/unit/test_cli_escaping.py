"""Names and data from other parties are printed without control over the terminal."""

import json
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp_core.cli import output
from sbp_core.cli.output import one_line, to_json, value_text
from sbp_core.wording import escape

HARMFUL = {
    "an escape sequence": ("\x1b[31mred", r"\x1b[31mred"),
    "C1 instead of ESC [": ("\x9b2J", r"\x9b2J"),
    "DEL": ("a\x7fb", r"a\x7fb"),
    "a bidirectional override": ("\u202eexe.txt", r"\u202eexe.txt"),
    "isolates": ("\u2066a\u2069", r"\u2066a\u2069"),
    "marks": ("\u200ea\u200fb\u061c", r"\u200ea\u200fb\u061c"),
    "a lone surrogate": ("\udcff", r"\udcff"),
    "line separators": ("a\u2028b\u2029\x85", r"a\u2028b\u2029\x85"),
    "a tag": ("\U000e0041", r"\U000e0041"),
    "new lines": ("a\r\nb", r"a\r\nb"),
}


def is_harmless(text: str) -> bool:
    return not any(
        unicodedata.category(char) in {"Cc", "Cs", "Zl", "Zp"} or 0x2066 <= ord(char) <= 0x2069
        for char in text
    )


@pytest.mark.parametrize(("text", "shown"), HARMFUL.values(), ids=HARMFUL)
def test_harmful_characters_are_escaped(text, shown):
    assert escape(text) == shown
    assert value_text(text.encode("utf-8", "surrogatepass")).isprintable()
    encoded = to_json({text: text})
    assert is_harmless(encoded)
    assert json.loads(encoded) == {text: text}
    encoded.encode()


@pytest.mark.parametrize(
    "text",
    ["plain", "f\u00fcnf \u20ac\u00a0", "\u0645\u06cc\u200c\u062e", "\U0001f468\u200d\U0001f469"],
)
def test_readable_text_stays(text):
    assert escape(text) == text
    assert value_text(text.encode()) == text
    assert json.dumps(text, ensure_ascii=False) == to_json(text)


def test_values_keep_tabs_and_show_what_is_no_text():
    assert value_text(b"a\tb\xff\n") == r"a	b\xff\n"


def test_white_space_becomes_one_line():
    assert one_line("a\n  - b\x1b\n") == r"a - b\x1b"


@given(st.text())
def test_any_text_is_harmless_afterwards(text):
    assert is_harmless(escape(text))
    assert json.loads(to_json(text)) == text
    assert to_json(text, is_ascii=True).isascii()


def test_every_way_out_escapes(capsys):
    text = "\x1b]0;title\x07\u202e"
    output.write_line(text)
    output.write_table(["NAME"], [[text]])
    output.write_json({"name": text + "\x7f"})
    output.write_notice(text)
    printed = capsys.readouterr()
    assert is_harmless(printed.out.replace("\n", "") + printed.err.replace("\n", ""))
    assert printed.out.splitlines()[0] == r"\x1b]0;title\x07\u202e"
    assert printed.err == "sbp: \\x1b]0;title\\x07\\u202e\n"


def test_a_table_on_a_terminal_is_bold_above_whole_and_harmless(monkeypatch, capsys):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    output.write_table(("NAME", "N"), [("[red]\x1b[2J" + "long" * 50, 1), ("\u4e16", 2)])
    heading, first, second = capsys.readouterr().out.splitlines()
    assert "\x1b[1mNAME" in heading
    assert first.split() == ["[red]\\x1b[2J" + "long" * 50, "1"]
    assert second.split() == ["\u4e16", "2"]

"""Shells complete command lines: commands, options, paths and names of streams."""

import pytest

from sbp_core.cli.commands import COMPLETE_VARIABLE
from sbp_spark.command import main


@pytest.fixture
def complete(monkeypatch, capsys):
    """Return what bash is told may follow some words, the last of which is incomplete."""

    def ask(*words: str) -> set[str]:
        monkeypatch.setenv(COMPLETE_VARIABLE, "bash_complete")
        monkeypatch.setenv("COMP_WORDS", " ".join(("sbp", *words)))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        assert main([]) == 0
        printed = capsys.readouterr()
        assert printed.err == ""
        return {line.partition(",")[2] for line in printed.out.splitlines() if line}

    return ask


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["pr"], {"produce"}),
        (["check"], {"checkpoint"}),
        (["--v"], {"--version", "--verbose"}),
        (["serve", "--pd"], {"--pd-port"}),
        (["streams", "tr"], {"trim"}),
        (["txns", "g"], {"give-up"}),
        (["txns", "give-up", "--js"], {"--json"}),
        (["backup", "li"], {"list"}),
        (["pd", "ac"], {"accept"}),
        (["completion", ""], {"bash", "zsh", "fish"}),
        (["nothing", "x"], set()),
    ],
)
def test_words_are_completed(complete, words, found):
    assert complete(*words) == found


def test_the_shell_completes_paths(complete):
    assert complete("serve", "--config", "conf/s") == {"conf/s"}


def test_streams_are_not_completed_without_a_cluster(complete):
    words = ("streams", "describe", "--endpoint", "127.0.0.1:1")
    assert complete(*words, "a") == set()
    assert complete(*words[:-1], "nowhere", "a") == set()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_asks_sbp(capsys, shell):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"{COMPLETE_VARIABLE}={shell}_complete" in script
    assert len(script.splitlines()) > 10

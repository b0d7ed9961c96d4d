"""A reader of the documents, who does what a page says, block after block, as printed.

    python -m tests.docs.reading PAGE...    does each page twice, against a cluster of its own

The Python blocks of a page are one program, its shell blocks are pasted into one terminal. The
default endpoint and the folder /tmp/sbp-demo are replaced in both.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from threading import Timer
from unittest import SkipTest

from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser, SkipParser

from sbp_core.cluster import LocalCluster
from sbp_spark.java import use_java

SHELL_SECONDS = 120
DONE = "-- the block is done --"


class Terminal:
    """One bash for all shell blocks of a page: its variables, folder and jobs last."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        self._script = folder / "block.sh"
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._bash = subprocess.Popen(
            ["bash", "-eu", "-o", "pipefail"],
            cwd=folder,
            env={**os.environ, "SBP_ENDPOINT": endpoint, "PATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        # As a terminal that is closed: jobs end with it. A block that fails ends it, too.
        self._type("trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT")

    def run(self, block: str) -> str:
        """Run a block, and return its output; raises AssertionError if a command fails."""
        self._script.write_text(block, encoding="utf-8")
        self._type(f"source {self._script} </dev/null", f"printf '\\n%s\\n' '{DONE}'")
        output: list[str] = []
        timer = Timer(SHELL_SECONDS, self._bash.terminate)
        timer.start()
        try:
            for line in self._bash.stdout:
                if line.rstrip("\n") == DONE:
                    return "".join(output)
                output.append(line)
        finally:
            timer.cancel()
        raise AssertionError("".join(["a command failed, or took too long:\n", *output]))

    def close(self) -> None:
        """End the terminal and its jobs."""
        self._bash.communicate(timeout=SHELL_SECONDS)

    def _type(self, *lines: str) -> None:
        self._bash.stdin.writelines(f"{line}\n" for line in lines)
        self._bash.stdin.flush()


class Reader:
    """Somebody with a running cluster, and a folder in place of /tmp/sbp-demo."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        self._folder = folder
        self._endpoint = endpoint

    def read(self, page: Path) -> None:
        """Do what a page says; raises what its code raises, AssertionError for a shell block."""
        terminal = Terminal(self._folder, self._endpoint)

        def run_python(example: Example) -> None:
            source = "\n" * (example.line + example.parsed.line_offset) + self._own(example)
            exec(compile(source, example.path, "exec", dont_inherit=True), example.namespace)

        def run_shell(example: Example) -> None:
            print(terminal.run(self._own(example)))

        def run_sql(example: Example) -> None:
            for statement in filter(str.strip, self._own(example).split(";")):
                example.namespace["spark"].sql(statement).show()

        blocks = {"python": run_python, "sh": run_shell, "sql": run_sql}
        parsers = [CodeBlockParser(*block) for block in blocks.items()]
        try:
            for example in Sybil(parsers=[SkipParser(), *parsers]).parse(page).examples():
                try:
                    example.evaluate()
                except SkipTest as reason:
                    print(f"{page}:{example.line} does not run: {reason}")
        finally:
            terminal.close()

    def _own(self, example: Example) -> str:
        text = example.parsed.replace("127.0.0.1:12378", self._endpoint)
        return text.replace("/tmp/sbp-demo", str(self._folder))


def main(pages: list[str]) -> None:
    """Do each page twice, in a folder and against a cluster that nothing was done to."""
    use_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    for page in [Path(each).absolute() for each in pages]:
        with (
            tempfile.TemporaryDirectory(prefix="sbp-demo-") as name,
            LocalCluster(Path(name, "data")) as cluster,
        ):
            os.chdir(name)
            for _ in range(2):
                Reader(Path(name), cluster.endpoint).read(page)


if __name__ == "__main__":
    main(sys.argv[1:])

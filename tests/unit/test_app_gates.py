"""The worker of a gate in the child of a fork."""

import subprocess
import sys
import textwrap

SCRIPT = """
    import asyncio, gc, os
    from sbp_core.app.gates import Gate

    async def main():
        gate = Gate()

        async def work():
            await gate.wait(None)

        gate.start(work)
        await asyncio.sleep(0)
        if os.fork() == 0:
            gate.leave()
            del gate, work
            gc.collect()
            os._exit(0)
        assert os.wait()[1] == 0

    asyncio.run(main())
"""


def test_a_worker_that_goes_on_in_the_parent_is_forgotten_without_a_word():
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

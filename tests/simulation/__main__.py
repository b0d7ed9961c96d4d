"""Run seeds of the simulation: `python -m tests.simulation --seeds 0:1000`.

A seed that fails is printed with the promise that was broken; add it to FAILED_ONCE in
`test_simulation.py`. `--seeds 17 --log` prints all that happened in the run of one seed.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))


def main() -> int:
    from sim_mutants import MUTANTS, MUTANTS_OF_REPLICAS
    from sim_run import Setup, run_seed

    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", default="0:100", metavar="FIRST:END", help="or one seed")
    parser.add_argument("--replicas", type=int, default=1, help="replicas of each range")
    mutants = MUTANTS | MUTANTS_OF_REPLICAS
    parser.add_argument("--mutant", choices=mutants, help="break this promise; stop when it shows")
    parser.add_argument("--log", action="store_true", help="print the events of each run")
    options = parser.parse_args()
    if options.mutant:
        mutants[options.mutant]()
    if not options.log:
        logging.disable()
    began = time.process_time()
    failed: list[int] = []
    count = acknowledged = 0
    first, _, end = options.seeds.partition(":")
    for seed in range(int(first), int(end or int(first) + 1)):
        try:
            report = run_seed(seed, Setup(options.replicas))
        except BaseException:
            print(f"seed {seed} ends with an error:", flush=True)
            raise
        count += 1
        acknowledged += report.acknowledged
        if options.log:
            print("\n".join(report.lines))
        if report.error:
            failed.append(seed)
            print(f"seed {seed}: {report.error}", flush=True)
            if options.mutant:
                break
    seconds = time.process_time() - began
    print(
        f"{count} seeds in {seconds:.1f} s of one processor, {acknowledged} acknowledged appends"
        f" and commits; failed: {failed or 'none'}"
    )
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())

"""``python -m tests.fuzz --cases 5_000_000 --seed 1``: every decoder against damaged encodings, counted per decoder.

Each decoder raises the error that its documentation names and nothing else, and no case takes longer than 50 ms of
processor time, or than 50 ms for each 64 KiB. A case depends on the seed, the decoder's name and its number only, so
what is found can be repeated: ``--target "message Hello" --first 1234 --cases 1``. Ends with 1 when there are findings.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz import xpath_verdicts
from tests.fuzz.target import Finding, Target, run_cases
from tests.fuzz.targets import all_targets, shares

CASES: int = 100_000
SHOWN_MAX: int = 5
"""Findings shown of one decoder; the others are counted."""


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line asks for; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=CASES, help="how many in all (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", default="", help="only decoders whose name contains this")
    parser.add_argument("--first", type=int, default=0, help="number of the first case of each decoder")
    parser.add_argument("--xpath-verdicts", type=int, default=0, help="instead: compare so many verdicts with lxml's")
    asked = parser.parse_args(arguments)
    if asked.xpath_verdicts:
        return 1 if xpath_verdicts.report(asked.xpath_verdicts, asked.seed) else 0
    with tempfile.TemporaryDirectory(prefix="peerd-fuzz-") as scratch:
        targets = [target for target in all_targets(Path(scratch)) if asked.target in target.name]
        if not targets:
            parser.error(f"no decoder has {asked.target!r} in its name")
        return _run(targets, asked)


def _run(targets: list[Target], asked: argparse.Namespace) -> int:
    gc.freeze()
    found = ran = 0
    started = time.monotonic()
    for target, count in shares(targets, asked.cases).items():
        found += _report(target, asked.seed, range(asked.first, asked.first + count))
        ran += count
    taken_s = time.monotonic() - started
    print(f"{ran} cases of {len(targets)} decoders in {taken_s:.0f} s ({ran / taken_s:.0f} a second), {found} findings")
    return 1 if found else 0


def _report(target: Target, seed: int, numbers: range) -> int:
    started = time.monotonic()
    findings = list(_shown(run_cases(target, seed, numbers)))
    rate = len(numbers) / max(1e-9, time.monotonic() - started)
    print(f"{target.name:32} {len(numbers):9} cases {rate:8.0f} a second {len(findings):5} findings", flush=True)
    return len(findings)


def _shown(findings: Iterator[Finding]) -> Iterator[Finding]:
    for number, finding in enumerate(findings):
        if number < SHOWN_MAX:
            print(f"  {finding}", flush=True)
        yield finding


if __name__ == "__main__":
    sys.exit(main())

"""`make mutate`: how many guards of the store's SQL are seen by its tests, and which are not.

Exit 0: all that survived are known, each with its reason, and at most 5 % of what was tried; 1: others survived.
"""

import argparse
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests")]

from lab.cache import folder  # noqa: E402 - paths first
from lab.postgres import Server  # noqa: E402
from mutate.guards import Guard, guards  # noqa: E402
from mutate.loop import REFUSED, SURVIVED, Bounds, Loop, Verdict, last_killers  # noqa: E402
from poolkeeper.store.statements import sql_file, sql_names  # noqa: E402

KNOWN = ROOT / "tests" / "store" / "survivors.txt"
ALLOWED = 5  # percent


def sources() -> dict[str, str]:
    """File name -> text, of migrations and functions."""
    return {name: sql_file(f"{folder}/{name}") for folder in ("migrations", "functions") for name in sql_names(folder)}


def known() -> dict[str, str]:
    """Guard -> why no test can see it: the lines of KNOWN, each `file: guard | reason`."""
    lines = KNOWN.read_text().splitlines() if KNOWN.exists() else []
    pairs = (line.rsplit(" | ", 1) for line in lines if line and not line.startswith("#"))
    return {name.strip(): reason.strip() for name, reason in pairs}


def full_name(guard: Guard) -> str:
    """As in KNOWN."""
    return f"{guard.file}: {guard.name}"


def chosen(every: list[Guard], sample: int | None, seed: int, only: str) -> list[Guard]:
    """Those that are asked for, in the order of the seed, so that no file comes last."""
    found = [guard for guard in every if re.search(only, full_name(guard))]
    random.Random(seed).shuffle(found)  # noqa: S311 - no secret
    return found if sample is None else found[:sample]


def main() -> int:
    """Parse, run, report."""
    options = argparse.ArgumentParser(prog="make mutate", description=__doc__)
    options.add_argument("--sample", type=int, help="so many guards, drawn by the seed; all without it")
    options.add_argument("--seed", type=int, default=random.randrange(10**6))  # noqa: S311 - no secret
    options.add_argument("--only", default="", help="a pattern on 'file: function: kind: text'")
    options.add_argument("--tests", default="", help="only tests that pytest's -k finds by this")
    options.add_argument("--again", action="store_true", help="only those that no test saw the last time")
    options.add_argument(
        "--each", action="store_true", help="say what became of each, not of those alone that no test saw"
    )
    options.add_argument("--list", action="store_true", help="print the guards and end")
    options.add_argument("--together", type=int, default=2, help="so many at once")
    options.add_argument("--seconds", type=float, default=float("inf"), help="begin with none after so many")
    options.add_argument(
        "--patience", type=float, default=float("inf"), help="so many seconds of tests for a guard, the likeliest first"
    )
    asked = options.parse_args()
    texts = sources()
    every = [guard for name, text in texts.items() for guard in guards(name, text)]
    if asked.again:
        killers = last_killers(folder() / "mutate")
        every = [guard for guard in every if killers.get(guard.name) == ""]
    picked = chosen(every, asked.sample, asked.seed, asked.only)
    if asked.list:
        print("\n".join(full_name(guard) for guard in picked))
        return 0
    kinds = ", ".join(f"{kind} {n}" for kind, n in Counter(guard.kind for guard in every).most_common())
    print(f"mutate: {len(every)} guards ({kinds}); {len(picked)} are tried, seed {asked.seed}", flush=True)
    began = time.monotonic()

    def tell(verdict: Verdict) -> None:
        done = len(loop.verdicts)
        if asked.each or verdict.ended == SURVIVED or done % 25 == 0:
            gone = time.monotonic() - began
            left = gone / done * (len(picked) - done)
            sys.stderr.write(
                f"mutate: {done} of {len(picked)}, {gone:.0f} s, about {left:.0f} s more; {verdict.ended}"
                f" ({verdict.seconds:.1f} s): {verdict.guard.name}\n"
            )
            sys.stderr.flush()

    with (
        Server(fsync=False, settings={"track_functions": "all", "max_connections": "300"}) as server,
        tempfile.TemporaryDirectory() as scratch,
    ):
        os.environ["POOLKEEPER_TEST_DSN"] = server.dsn()
        bounds = Bounds(asked.together, asked.seconds, asked.patience)
        loop = Loop(texts, picked, Path(scratch), folder() / "mutate", tell, bounds)
        options_ = [
            "-p",
            "no:terminal",
            "-p",
            "no:cacheprovider",
            "--assert=plain",  # red is enough; what is imported already could not be rewritten
            "-m",
            "not (wide or deep)",
            f"--ignore={ROOT / 'tests' / 'store' / 'test_mutate.py'}",  # which does the same
            "--timeout=60",
            "-o",
            "addopts=",
            "-W",
            "ignore::pytest.PytestAssertRewriteWarning",  # of the kit's plugin: poolkeeper is imported here already
        ]
        options_ += ["-k", asked.tests] if asked.tests else []
        code = pytest.main([*options_, str(ROOT / "tests" / "store")], plugins=[loop])
    if code != pytest.ExitCode.OK or not loop.verdicts:
        print(f"mutate: the tests could not be run ({loop.stopped or code}); run them: pytest tests/store")
        return 1
    if len(loop.verdicts) < len(picked):
        print(f"mutate: {len(loop.verdicts)} of {len(picked)} in the time that was given")
    for test in loop.left_out:
        print(f"mutate: red with every guard in place, so it judged none: {test}")
    return report(loop.verdicts, time.monotonic() - began)


def table(tried: list[Verdict]) -> str:
    """What became of them, file by file."""
    lines = ["| file | tried | killed | survived |", "| --- | --- | --- | --- |"]
    for file in sorted({each.guard.file for each in tried}):
        mine = [each for each in tried if each.guard.file == file]
        alive = sum(each.ended == SURVIVED for each in mine)
        lines.append(f"| `{file}` | {len(mine)} | {len(mine) - alive} | {alive} |")
    return "\n".join(lines)


def report(verdicts: list[Verdict], seconds: float) -> int:
    """Say what became of them; 0 if it is as it should be."""
    reasons = known()
    tried = [each for each in verdicts if each.ended != REFUSED]
    alive = sorted((each for each in tried if each.ended == SURVIVED), key=lambda each: full_name(each.guard))
    new = [each for each in alive if full_name(each.guard) not in reasons]
    dead = {full_name(each.guard) for each in tried if each.ended != SURVIVED} & reasons.keys()
    print(table(tried))
    for each in alive:
        print(f"survived: {full_name(each.guard)} | {reasons.get(full_name(each.guard), 'NOT KNOWN')}")
    for name in sorted(dead):
        print(f"a test sees it now, take it off {KNOWN.name}: {name}")
    share = 100 * len(alive) / max(1, len(tried))
    counts = ", ".join(f"{ended} {n}" for ended, n in Counter(each.ended for each in verdicts).most_common())
    print(f"mutate: {counts}; {share:.1f} % survived (at most {ALLOWED}), {len(new)} without a reason, {seconds:.0f} s")
    return 1 if new or share > ALLOWED else 0


if __name__ == "__main__":
    sys.exit(main())

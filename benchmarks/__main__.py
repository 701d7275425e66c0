"""`python -m benchmarks [F1] [F2] [F9] [F20] [--quick]`: measure, print the table, write benchmarks/results/store.json."""

import argparse
import sys

from benchmarks import bulk, drain, figures, recovery
from benchmarks.rig import Rig
from lab.postgres import Server


def main() -> int:
    """Return 0 when every figure that must be reached was."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ids", nargs="*", help="F1, F2 (in bulk), F9 (with F10), F20; default: all")
    parser.add_argument("--quick", action="store_true", help="one round of 20,000 tasks instead of three of 100,000")
    given = parser.parse_args()
    ids = {name.upper() for name in given.ids} or {"F1", "F2", "F9", "F20"}
    found: list[figures.Figure] = []
    with Server(fsync=True) as server:
        rig = Rig(server)
        print(f"server: {server.binaries}, fsync and synchronous_commit on; rounds are interleaved", flush=True)
        if "F1" in ids:
            found += drain.figures(rig, count=20_000 if given.quick else 100_000, rounds=1 if given.quick else 3)
        if "F2" in ids:
            found += bulk.figures(rig, rounds=3 if given.quick else 9)
        if ids & {"F9", "F10"}:
            found += recovery.figures(rig, rounds=1 if given.quick else 3)
    if "F20" in ids:
        from benchmarks import breach

        found += breach.figures(rounds=6 if given.quick else 30)
    figures.show(found)
    print(f"written: {figures.write('store', found)}")
    return 0 if all(f.ok for f in found) else 1


if __name__ == "__main__":
    sys.exit(main())

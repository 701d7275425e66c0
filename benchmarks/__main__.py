"""`python -m benchmarks [F1 …] [--quick] [--peers NAME,…]`: measure, print the table, write benchmarks/results/store.json."""

import argparse
import sys

from benchmarks import bulk, drain, figures, flatness, footprint, hog, pickup, recovery, submit
from benchmarks.peers import installed
from benchmarks.rig import Rig
from lab.postgres import Server

IDS = ("F1", "F2", "F3", "F4", "F5", "F6", "F7", "F8", "F9", "F11", "F20")


def main() -> int:
    """Return 0 when every figure that must be reached was."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ids", nargs="*", help=f"{', '.join(IDS)} (F9 with F10); default: all")
    parser.add_argument("--quick", action="store_true", help="one round of 20,000 tasks instead of three of 100,000")
    parser.add_argument("--peers", default="all", help="names with commas between, all, or none")
    given = parser.parse_args()
    ids = {name.upper() for name in given.ids} or set(IDS)
    peers = []
    if ids & {"F1", "F2", "F3"} and given.peers != "none":
        peers = installed(None if given.peers == "all" else set(given.peers.split(",")))
    for peer in peers:
        print(f"peer: {peer.name} {peer.about['version']}, {peer.about['settings']}", flush=True)
    found: list[figures.Figure] = []
    with Server(fsync=True) as server:
        rig = Rig(server)
        print(f"server: {server.binaries}, fsync and synchronous_commit on; rounds are interleaved", flush=True)
        if "F1" in ids:
            found += drain.figures(rig, peers, count=20_000 if given.quick else 100_000, rounds=1 if given.quick else 3)
        if "F2" in ids:
            found += submit.figures(rig, peers, count=1_000 if given.quick else 5_000, rounds=1 if given.quick else 3)
            found += bulk.figures(rig, peers, rounds=3 if given.quick else 9)
        if "F3" in ids:
            found += pickup.figures(rig, peers, seconds=5 if given.quick else 20, rounds=1 if given.quick else 3)
        found += footprint.figures(rig, ids, quick=given.quick)
        found += flatness.figures(rig, ids, quick=given.quick)
        if "F7" in ids:
            found += hog.figures(rig, quick=given.quick)
        if ids & {"F9", "F10"}:
            found += recovery.figures(rig, rounds=1 if given.quick else 3)
    if "F20" in ids:
        from benchmarks import breach

        found += breach.figures(rounds=6 if given.quick else 30)
    figures.show(found)
    print(f"written: {figures.write('store', found, peers)}")
    return 0 if all(f.ok for f in found) else 1


if __name__ == "__main__":
    sys.exit(main())

"""`python -m benchmarks store|operator [F1 …] [--quick] [--peers NAME,…]`: measure, print the table, write benchmarks/results/…json."""

import argparse
import sys

from benchmarks import bulk, drain, endurance, figures, flatness, footprint, hog, pickup, recovery, scaling, submit
from benchmarks.peers import Peer, installed
from benchmarks.rig import Rig
from lab.postgres import Server

STORE = ("F1", "F2", "F3", "F4", "F5", "F6", "F7", "F8", "F9", "F11", "F12", "F13", "F14")
OPERATOR = ("F20", "F22", "F23", "F24", "F25", "F26")
BESIDE_KEDA = "KEDA"  # asked for by name only: it builds KEDA first, 8 minutes on 2 cores
BESIDE_PEERS = {"F1", "F2", "F3"}


def store(ids: set[str], peers: list[Peer], *, quick: bool) -> list[figures.Figure]:
    """The figures of store and worker."""
    found: list[figures.Figure] = []
    rounds = 1 if quick else 3
    with Server(fsync=True) as server:
        rig = Rig(server)
        print(f"server: {server.binaries}, fsync and synchronous_commit on; rounds are interleaved", flush=True)
        if "F1" in ids:
            found += drain.figures(rig, peers, count=20_000 if quick else 100_000, rounds=rounds)
        if "F2" in ids:
            found += submit.figures(rig, peers, count=1_000 if quick else 5_000, rounds=rounds)
            found += bulk.figures(rig, peers, rounds=3 * rounds)
        if "F3" in ids:
            found += pickup.figures(rig, peers, seconds=5 if quick else 20, rounds=rounds)
        found += footprint.figures(rig, ids, quick=quick)
        found += flatness.figures(rig, ids, quick=quick)
        if "F7" in ids:
            found += hog.figures(rig, quick=quick)
        if "F9" in ids:
            found += recovery.figures(rig, rounds=rounds)
        found += endurance.figures(rig, ids, quick=quick)
    return found


def operator(ids: set[str], *, quick: bool) -> list[figures.Figure]:
    """The figures of the operator: on a control plane, and in simulation."""
    found: list[figures.Figure] = []
    if "F20" in ids:
        from benchmarks import breach

        found += breach.figures(rounds=6 if quick else 30)
    if ids & {"F22", "F23", "F24"}:
        from benchmarks import thousand

        found += thousand.figures(ids, quick=quick)
    if "F25" in ids:
        from benchmarks import scaledown

        found += scaledown.figures(quick=quick)
    if "F26" in ids:
        found += scaling.figures(quick=quick)
    if BESIDE_KEDA in ids:
        from benchmarks import keda

        found += keda.figures(quick=quick)
    return found


def main() -> int:
    """Return 0 when every figure that must be reached was."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("store", "operator"))
    parser.add_argument(
        "ids",
        nargs="*",
        type=str.upper,
        help=f"{', '.join((*STORE, *OPERATOR))} (F9 with F10); default: all; {BESIDE_KEDA}: F20 and F21 beside it",
    )
    parser.add_argument("--quick", action="store_true", help="one round of a fifth of the tasks, backlogs of a fifth")
    parser.add_argument("--peers", default="all", help="names with commas between, all, or none")
    given = parser.parse_args()
    known = STORE if given.what == "store" else OPERATOR
    named = known if given.what == "store" else (*OPERATOR, BESIDE_KEDA)
    ids = set(given.ids or known)
    if unknown := ids - set(named):
        parser.error(f"{given.what} has no figure {', '.join(sorted(unknown))}; it has {', '.join(named)}")
    peers: list[Peer] = []
    if given.what == "store" and ids & BESIDE_PEERS and given.peers != "none":
        peers = installed(None if given.peers == "all" else set(given.peers.split(",")))
    for peer in peers:
        print(f"peer: {peer.name} {peer.about['version']}, {peer.about['settings']}", flush=True)
    found = store(ids, peers, quick=given.quick) if given.what == "store" else operator(ids, quick=given.quick)
    figures.show(found)
    if not given.ids and given.peers == "all":  # what is written is one run of everything
        print(f"written: {figures.write(given.what, found, peers)}")
    if ids == {BESIDE_KEDA}:
        from benchmarks import keda

        print(f"written: {figures.write('keda', found, [keda.peer()])}")
    return 0 if all(f.ok for f in found) else 1


if __name__ == "__main__":
    sys.exit(main())

"""`python -m benchmarks.peers.python NAME VERB [DSN NUMBER…]`: one of the peers of this folder."""

import sys
from importlib import import_module

from benchmarks.peers.python.peer import main

if __name__ == "__main__":
    name, verb, *arguments = sys.argv[1:]
    main(import_module(f"benchmarks.peers.python.{name}").PEER, verb, arguments)

"""What tests and the demo stand on: a real Postgres and a real Kubernetes on one machine.

`python -m lab --help` lists the commands. Everything listens on loopback or on a bridge of this machine only
and is stopped by process id. Nothing here is part of what users install.
"""

"""A real pgbouncer in front of a Postgres server, started as a child process and gone with us.

Guarantees: listens on 127.0.0.1 on a free port, lets in whom it was told of and asks for no password, runs as an
unprivileged user, and ends when the thread that started it ends, even by SIGKILL. Not for anything but tests.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from lab import packages, postgres_binaries
from lab.errors import LabError
from lab.process import Process, die_with_parent

_USER = "nobody"  # it refuses to run as root
_SETTINGS = {
    "pool_mode": "transaction",
    "default_pool_size": "5",
    "max_client_conn": "500",
    "query_wait_timeout": "60",
    "server_reset_query_always": "0",
}


class Pooler:
    """One pgbouncer.

    Parameters
    ----------
    upstream: where the server is, as libpq has it: `host`, `port`, and the `password` of whoever needs one.
    users: who may come in, by name.
    settings: of section [pgbouncer], over ours: transaction mode, at most 5 connections per database and user.
    """

    def __init__(
        self, upstream: Mapping[str, Any], *, users: Sequence[str], settings: Mapping[str, str] | None = None
    ) -> None:
        self.program = packages.require("pgbouncer")
        self.port = _free_port()
        self._upstream = upstream
        self._users = users
        self._settings = {**_SETTINGS, **(settings or {})}
        self._folder: Path | None = None
        self._process: Process | None = None

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:  # interrupted meanwhile
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def log(self) -> str:
        """What it wrote so far."""
        return "" if self._folder is None else (self._folder / "log").read_text(errors="replace")

    def start(self) -> Self:
        """Start it; returns once it takes connections."""
        self._folder = self._configure()
        uid, gid = postgres_binaries.ids(_USER) if os.geteuid() == 0 else (None, None)
        with (self._folder / "log").open("wb") as log:
            child = subprocess.Popen(
                [self.program, self._folder / "ini"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for us; we then stop it
                preexec_fn=die_with_parent(signal.SIGTERM),  # noqa: PLW1509  # prctl only: no lock, no allocation
                user=uid,
                group=gid,
                extra_groups=None if uid is None else [],
            )
        child.returncode = 0  # Process waits for it, not Popen
        self._process = Process.of(child.pid)
        end = time.monotonic() + 60.0
        while not self._answers():
            if time.monotonic() > end or not self._process.alive():
                raise LabError(f"pgbouncer did not come up on port {self.port}:\n{self.log[-2000:]}")
            time.sleep(0.01)
        return self

    def close(self) -> None:
        """End it at once and remove its folder."""
        if self._process is not None:
            self._process.stop(signal.SIGTERM)  # at once; SIGINT would wait for its clients
        self._process = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = None

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _configure(self) -> Path:
        folder = Path(tempfile.mkdtemp(prefix="pk-pgbouncer-"))
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(self.port),
            "unix_socket_dir": "",
            "auth_type": "trust",
            "auth_file": str(folder / "users"),
            **self._settings,
        }
        upstream = f"host={self._upstream.get('host', '127.0.0.1')} port={self._upstream.get('port', 5432)}"
        lines = [f"{name} = {value}" for name, value in settings.items()]
        (folder / "ini").write_text("\n".join(["[databases]", f"* = {upstream}", "[pgbouncer]", *lines, ""]))
        password = str(self._upstream.get("password", "")).replace('"', '""')
        (folder / "users").write_text("".join(f'"{user}" "{password}"\n' for user in self._users))
        for path in (folder, *folder.iterdir()):
            path.chmod(0o755 if path.is_dir() else 0o644)
        return folder


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

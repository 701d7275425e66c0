"""A real Postgres server of our own, started as a child process and gone with us.

Guarantees: listens on 127.0.0.1 (and the addresses given) on a free port, runs as an unprivileged user, ends when
the thread that started it ends, even by SIGKILL; the folder of a killed owner is removed by the next server.
Commits are durable unless `fsync=False` is asked for; synchronous_commit is never touched.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from lab import postgres_binaries
from lab.errors import LabError
from lab.process import Process, die_with_parent, start_time

_PREFIX = "pk-pg-"
SETTINGS = {
    "max_connections": "200",
    "shared_buffers": "128MB",
    "max_wal_size": "2GB",
    "checkpoint_timeout": "15min",
    "log_min_messages": "warning",
    "log_line_prefix": "%m [%p] %q%u@%d ",
    "unix_socket_directories": "",  # TCP only: no socket path to be too long
    "timezone": "UTC",
    "log_timezone": "UTC",
    "lc_messages": "C",
}
"""Of every server, unless it is given others."""
STOP = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}


class Server:
    """One Postgres server with a superuser `postgres`, trusted on loopback.

    Parameters
    ----------
    addresses: further addresses to listen on, e.g. the gateway of the pods' bridge (must exist by then).
    network, network_auth: who may come in over them, and how (`trust` or `scram-sha-256`).
    fsync: False only where no test or figure speaks of durability.
    settings: further server settings, over ours.
    standby_of: a running server that this one follows as a streaming, readable standby.
    environment: further variables of the server's processes.
    place: where the data is to be; default the system's folder for what is temporary.
    binaries: which Postgres; default as POOLKEEPER_TEST_PG says.
    """

    def __init__(
        self,
        *,
        addresses: Sequence[str] = (),
        network: str = "10.64.0.0/10",
        network_auth: str = "scram-sha-256",
        fsync: bool = True,
        settings: Mapping[str, str] | None = None,
        binaries: postgres_binaries.Binaries | None = None,
        port: int | None = None,
        standby_of: "Server | None" = None,
        environment: Mapping[str, str] | None = None,
        place: Path | None = None,
    ) -> None:
        self.binaries = binaries or postgres_binaries.find()
        self._primary = standby_of
        self.addresses = ("127.0.0.1", *addresses)
        self.port = port or _free_port(self.addresses)
        self._hba = (network, network_auth)
        self._settings = {**SETTINGS, "fsync": "on" if fsync else "off", **(settings or {})}
        if not fsync:
            self._settings.setdefault("full_page_writes", "off")
        self._environment = environment
        self._place = place
        self._process: Process | None = None
        self._folder: Path | None = None

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:  # interrupted meanwhile
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Process id of the postmaster."""
        return self._running().pid

    @property
    def folder(self) -> Path:
        """The data directory."""
        if self._folder is None:
            raise LabError("this Postgres was never started or is closed; call start() first")
        return self._folder / "data"

    @property
    def log(self) -> str:
        """What the server wrote so far."""
        path = self.folder.parent / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def dsn(
        self, dbname: str = "postgres", *, user: str = "postgres", host: str = "127.0.0.1", password: str = ""
    ) -> str:
        """A connection URI for libpq."""
        secret = f":{password}" if password else ""
        return f"postgresql://{user}{secret}@{host}:{self.port}/{dbname}"

    def start(self) -> Self:
        """Make the data directory unless it exists, start the server, return once it accepts connections."""
        if self._process is not None and self._process.alive():
            return self
        if self._folder is None:
            self._folder = self._initdb()
        uid, gid = self._ids
        with (self._folder / "log").open("ab") as log:
            child = subprocess.Popen(
                [self.binaries.folder / "postgres", "-D", self.folder, *self._arguments()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for us; we then stop it in order
                preexec_fn=die_with_parent(signal.SIGQUIT),  # noqa: PLW1509  # prctl only: no lock, no allocation
                user=uid,
                group=gid,
                extra_groups=None if uid is None else [],
                env={**os.environ, **(self._environment or {})},
            )
        child.returncode = 0  # Process waits for it, not Popen
        self._process = Process.of(child.pid)
        self._await_ready()
        return self

    def stop(self, mode: str = "fast") -> None:
        """End the server (`smart`, `fast` or `immediate`) and keep its data; returns when it is gone."""
        if self._process is not None:
            self._process.stop(STOP[mode], grace=30.0)
        self._process = None

    def kill(self) -> None:
        """SIGKILL the postmaster and everything that it started, as a power cut would end them."""
        postmaster = self._running()
        children = [Process.of(pid) for pid in _children(postmaster.pid)]
        postmaster.stop(signal.SIGKILL)
        for child in children:
            child.stop(signal.SIGKILL)
        self._process = None

    def restart(self, mode: str = "fast") -> None:
        """Stop and start on the same port with the same data."""
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """Stop at once and remove the data."""
        self.stop("immediate")
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = None

    def _running(self) -> Process:
        if self._process is None:
            raise LabError("this Postgres is not running; call start() first")
        return self._process

    def _arguments(self) -> list[str]:
        settings = {**self._settings, "port": str(self.port), "listen_addresses": ",".join(self.addresses)}
        return [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]

    @property
    def _ids(self) -> tuple[int, int] | tuple[None, None]:
        return postgres_binaries.ids(self.binaries.user) if self.binaries.user else (None, None)

    def _initdb(self) -> Path:
        remove_orphans()
        me = os.getpid()
        folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{me}-{start_time(me)}-", dir=self._place))
        uid, gid = self._ids
        if uid is not None and gid is not None:
            os.chown(folder, uid, gid)
        command = (
            ["initdb", "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-instructions"]
            if self._primary is None
            else ["pg_basebackup", "--dbname", self._primary.dsn(), "--write-recovery-conf", "--checkpoint=fast"]
        )
        made = subprocess.run(
            [self.binaries.folder / command[0], "-D", folder / "data", "--no-sync", *command[1:]],
            capture_output=True, text=True, cwd=folder, check=False,
            user=uid, group=gid, extra_groups=None if uid is None else [],
        )  # fmt: skip
        if made.returncode:
            shutil.rmtree(folder, ignore_errors=True)
            raise LabError(f"{command[0]} of {self.binaries} failed (enough space in {folder.parent}?):\n{made.stderr}")
        if self._primary is not None:
            return folder  # with the rules of whom it follows
        with (folder / "data" / "pg_hba.conf").open("a") as hba:
            hba.write(f"host all all {self._hba[0]} {self._hba[1]}\n")
        return folder

    def _await_ready(self, timeout: float = 60.0) -> None:
        end = time.monotonic() + timeout
        status = self.folder / "postmaster.pid"
        while self._running().alive() and time.monotonic() < end:
            with contextlib.suppress(FileNotFoundError):  # its eighth line is the server's own word on its state
                lines = status.read_text().splitlines()
                if len(lines) >= 8 and lines[7].strip() == "ready" and int(lines[0]) == self.pid:
                    return
            time.sleep(0.01)
        log = self.log[-3000:]
        self.stop("immediate")
        raise LabError(f"{self.binaries} did not come up on {self.addresses} port {self.port}:\n{log}")


def remove_orphans() -> None:
    """Remove data directories whose owner is gone (killed before it could)."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*-*"):
        pid, started = folder.name.removeprefix(_PREFIX).split("-")[:2]
        with contextlib.suppress(FileNotFoundError):  # others remove them too
            if pid.isdigit() and start_time(int(pid)) != started and folder.stat().st_uid == _owner():
                shutil.rmtree(folder, ignore_errors=True)


def _owner() -> int:
    return postgres_binaries.ids("nobody")[0] if os.geteuid() == 0 else os.geteuid()


def _children(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    if path.exists():
        return [int(child) for child in path.read_text().split()]
    listed = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    return [int(child) for child in listed.stdout.split()]


def _free_port(addresses: Sequence[str]) -> int:
    with contextlib.ExitStack() as held:
        first = held.enter_context(socket.socket())
        first.bind((addresses[0], 0))
        port = int(first.getsockname()[1])
        for address in addresses[1:]:
            held.enter_context(socket.socket()).bind((address, port))
        return port

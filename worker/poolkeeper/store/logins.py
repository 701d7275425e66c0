"""The logins of pools (O5): the operator's calls about them, and the verifier by which Postgres is told a password.

Guarantees: no plain password is part of any statement; a verifier does not tell it (RFC 5802, SCRAM-SHA-256 as Postgres stores it).
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from psycopg.conninfo import make_conninfo

from poolkeeper.codes import Code
from poolkeeper.errors import error
from poolkeeper.store.call import Call, many, one, value
from poolkeeper.store.connection import parse_dsn

Slot = Literal["a", "b"]
SLOTS: tuple[Slot, Slot] = ("a", "b")
ITERATIONS = 4096
"""Postgres' own number: the passwords have 256 random bits, which no number of iterations makes harder to guess."""


@dataclass(frozen=True)
class PoolLogin:
    """One of the two logins of a pool ("namespace/name"); ``open``: it may log in; ``connections`` that it has now."""

    pool: str
    slot: Slot
    role: str
    open: bool
    connections: int


@dataclass(frozen=True)
class Retired:
    """What became of a login: ``in_use`` by so many connections, ``closed`` (nobody can log in any more) or ``gone``."""

    state: Literal["in_use", "closed", "gone"]
    connections: int


def new_password() -> str:
    """A password of 256 random bits, of characters that need no quoting in a DSN."""
    return secrets.token_urlsafe(32)


def verifier(password: str, salt: bytes | None = None) -> str:
    """What Postgres keeps of a password of ASCII characters; `salt`: 16 random bytes if absent."""
    salt = salt or secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode("ascii"), salt, ITERATIONS)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server = hmac.digest(salted, b"Server Key", "sha256")
    texts = (base64.b64encode(each).decode() for each in (salt, stored, server))
    return "SCRAM-SHA-256${}:{}${}:{}".format(ITERATIONS, *texts)


def dsn_as(dsn: str, user: str, password: str) -> str:
    """The same database for another login; raises Misconfigured ``dsn_invalid``, which quotes nothing of it."""
    problem = ""
    try:
        given = parse_dsn(dsn)
    except ValueError as cause:
        problem = str(cause)
    if problem:
        raise error(Code.DSN_INVALID, f"the DSN {problem}")
    given = {key: part for key, part in given.items() if key != "passfile"}
    return make_conninfo(**{**given, "user": user, "password": password})


def password_of(dsn: str) -> str:
    """The password in a DSN that ``dsn_as`` made; "" where there is none, or the DSN is broken."""
    try:
        return str(parse_dsn(dsn).get("password") or "")
    except ValueError:
        return ""


def set_pool_login(
    pool: str,
    slot: Slot,
    verifier: str | None,
    *,
    queues: Sequence[str],
    tenants: Sequence[str] | None = None,
    tenants_except: Sequence[str] | None = None,
    term: UUID | None = None,
) -> Call[str | None]:
    """Make a login of a pool or change its password (None: neither), and say what it may see; the role, None if there is none.

    Errors
    ------
    Forbidden ``role_not_allowed``: the schema's owner may not make roles, and the text says what to grant.
    """
    params = {"pool": pool, "slot": slot, "verifier": verifier, "queues": list(queues), "term": term}
    limits = {"tenants": tenants, "tenants_except": tenants_except}
    return Call("set_pool_login", params | {key: names and list(names) for key, names in limits.items()}, value)


def pool_logins(namespace: str, pool: str | None = None) -> Call[list[PoolLogin]]:
    """The logins of the pools of a namespace, or of one of them ("namespace/name")."""
    return Call("pool_logins", {"namespace": namespace, "pool": pool}, many(PoolLogin))


def retire_pool_login(pool: str, slot: Slot, *, term: UUID | None = None) -> Call[Retired]:
    """Take one step towards the end of a login; no connection is ended by it."""
    return Call("retire_pool_login", {"pool": pool, "slot": slot, "term": term}, one(Retired))

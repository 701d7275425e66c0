"""Connection strings and keys from Secrets, read by name and never listed, cached or logged.

An error names the object, the Secret, the key and the remedy; it never quotes the content.
"""

import base64
import binascii
from dataclasses import dataclass, field
from typing import Protocol

from poolkeeper_operator.resources.parts import SecretRef
from poolkeeper_operator.runtime.failures import KubeError
from poolkeeper_operator.runtime.kinds import SECRET
from poolkeeper_operator.runtime.kube import Kube

FORBIDDEN = "SecretForbidden"


class SecretProblem(Exception):
    """A Secret that cannot be used; `reason` is that of the condition."""

    expected = True

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class Ref(Protocol):
    """A key of a Secret by its names."""

    @property
    def name(self) -> str:
        """Of the Secret."""

    @property
    def key(self) -> str:
        """In it."""


@dataclass(frozen=True)
class Dsn:
    """A connection string, or another secret text, and the version of the Secret that it came from."""

    text: str = field(repr=False)
    version: str


async def read_dsn(kube: Kube, namespace: str, database: str, ref: SecretRef, spec_field: str) -> Dsn:
    """The connection string behind a reference; raises SecretProblem."""
    who = f'database "{database}" in namespace "{namespace}"'
    return await read_value(kube, namespace, who, ref, spec_field, "postgresql://user@host/database")


async def read_value(kube: Kube, namespace: str, who: str, ref: Ref, spec_field: str, hint: str) -> Dsn:
    """The text behind a reference of `who`; `hint`: what belongs there. Raises SecretProblem."""
    try:
        secret = await kube.get(SECRET, namespace, ref.name)
    except KubeError as error:
        if not error.forbidden:
            raise
        message = f'{who}: the operator may not read secret "{ref.name}"; grant it `get` on secrets in this namespace'
        raise SecretProblem(FORBIDDEN, message) from error
    if secret is None:
        message = f'{who}: there is no secret "{ref.name}"; create it with key "{ref.key}" or correct spec.{spec_field}'
        raise SecretProblem("SecretMissing", message)
    raw = (secret.get("data") or {}).get(ref.key)
    if raw is None:
        message = f'{who}: secret "{ref.name}" has no key "{ref.key}"; add it or set spec.{spec_field}.key'
        raise SecretProblem("SecretKeyMissing", message)
    try:
        text = base64.b64decode(raw, validate=True).decode().strip()
    except (binascii.Error, UnicodeDecodeError):
        text = ""
    if not text:
        message = f'{who}: key "{ref.key}" of secret "{ref.name}" is empty; write {hint} into it'
        raise SecretProblem("SecretEmpty", message)
    return Dsn(text, str(secret["metadata"]["resourceVersion"]))

"""Connection strings from Secrets, read by name and never listed, cached or logged.

An error names the Database, the Secret, the key and the remedy; it never quotes the content.
"""

import base64
import binascii
from dataclasses import dataclass, field

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


@dataclass(frozen=True)
class Dsn:
    """A connection string and the version of the Secret that it came from."""

    text: str = field(repr=False)
    version: str


async def read_dsn(kube: Kube, namespace: str, database: str, ref: SecretRef, spec_field: str) -> Dsn:
    """The connection string behind a reference; raises SecretProblem."""
    who = f'database "{database}" in namespace "{namespace}"'
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
        message = (
            f'{who}: key "{ref.key}" of secret "{ref.name}" is empty; write postgresql://user@host/database into it'
        )
        raise SecretProblem("SecretEmpty", message)
    return Dsn(text, str(secret["metadata"]["resourceVersion"]))

"""What can go wrong at the edge, as exceptions that the work queue logs in one line and tries again."""

import json
from collections.abc import Mapping

LONGEST_WAIT = 300.0  # seconds; a server that asks for more is asked again all the same


class KubeError(Exception):
    """The API server refused or could not be reached; `status` is the HTTP code, 0 if there was no answer.

    `not_before`: the seconds that the server asks to wait until the next try.
    """

    expected = True

    def __init__(self, status: int, what: str, message: str, not_before: float = 0.0) -> None:
        super().__init__(f"{what}: {message}" if status == 0 else f"{what}: {status} {message}")
        self.status = status
        self.message = message
        self.not_before = not_before

    @property
    def not_found(self) -> bool:
        """The object, or its namespace, is not there."""
        return self.status == 404  # noqa: PLR2004 - HTTP

    @property
    def conflict(self) -> bool:
        """Already there, or changed since it was read."""
        return self.status == 409  # noqa: PLR2004 - HTTP

    @property
    def expired(self) -> bool:
        """A list in pages took too long; it must begin anew."""
        return self.status == 410  # noqa: PLR2004 - HTTP

    @property
    def forbidden(self) -> bool:
        """The operator lacks the right."""
        return self.status == 403  # noqa: PLR2004 - HTTP

    @property
    def senseless(self) -> bool:
        """The server understood what was sent and will never take it."""
        return self.status in {400, 413, 422}


class Taken(KubeError):
    """An object of somebody else has the name of a pool's child; it is left alone."""

    def __init__(self, kind: str, name: str, why: str) -> None:
        remedy = f'delete {kind} "{name}", or give it or the pool another name'
        super().__init__(
            422, f'{kind} "{name}"', f'{kind} "{name}" is there already and not the pool\'s, {why}; {remedy}'
        )


class NotLeading(Exception):
    """A write that this process may not begin, since another one may hold the Lease (O29)."""

    expected = True


def retry_after(headers: Mapping[str, str]) -> float:
    """The seconds of Retry-After, 0 if there is none; the API server never writes the form that is a date."""
    text = headers.get("Retry-After", "")
    return min(float(text), LONGEST_WAIT) if text.isdigit() else 0.0


def message_of(body: bytes) -> str:
    """What a refusal says: the message of the Status, or the text."""
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")[:300]

"""The one redactor for what leaves a handler as text: errors, logs (Q54).

Guarantees: passwords in URLs and conninfo strings, bearer tokens and fencing tokens are masked, in time that grows
with the text and no faster, whatever is in it; a bounded text ends at a whole character.
Does not know the secrets of the application: what has no recognisable form is not found.
"""

import re

MAX_TEXT = 2048
"""Bytes of an error kept in the store; more is in the worker's log."""

_MASK = "***"
_SECRETS = (
    (re.compile(r"(://[^\s:/@]*):[^\s@/]*@"), rf"\1:{_MASK}@"),
    (
        re.compile(
            r"(\b(?:password|passwd|pwd|secret|token|api[_-]?key)\b[\"']?\s*[=:]\s*)('[^']*'|\"[^\"]*\"|[^\s&,;'\"]+)",
            re.IGNORECASE,
        ),
        rf"\1{_MASK}",
    ),
    (re.compile(r"(\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE), rf"\1{_MASK}"),
    (re.compile(r"\bpkt_[A-Za-z0-9_-]+"), f"pkt_{_MASK}"),
)


def redact(text: str) -> str:
    """Return `text` with everything that looks like a credential masked, and without NUL and lone surrogates."""
    for pattern, mask in _SECRETS:
        text = pattern.sub(mask, text)
    return text.replace("\x00", "").encode("utf-8", "replace").decode()


WRITTEN_OUT = 10**18
"""Whole numbers below it are shown as they are."""


def bounded(text: str, limit: int = MAX_TEXT) -> str:
    """Return `text` cut to at most `limit` bytes of UTF-8, at a whole character, marked where it was cut."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= limit:
        return raw.decode()
    return raw[: limit - 3].decode("utf-8", "ignore") + "…"


def shown(value: object) -> str:
    """What a value is, in at most 80 characters, also where its own words fail."""
    kind = type(value).__name__[:40]
    if value is None or isinstance(value, float) or (isinstance(value, int) and abs(value) < WRITTEN_OUT):
        return ascii(value)[:80]
    if isinstance(value, str):
        return ascii(value[:80])[:80]
    return f"{'an' if kind[:1].lower() in 'aeiou' else 'a'} {kind}"

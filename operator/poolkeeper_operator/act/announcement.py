"""The Event about a batch of dead letters as one readable sentence (O24).

Guarantees: the first task's id and the reason come first, then the counts, then the error, each bounded, so that no long
error pushes the rest out; one line without control characters, cut on a character boundary. Pure.
"""

import re
import unicodedata
from collections.abc import Mapping

from poolkeeper.store.rows import DeadBatch
from poolkeeper_operator.decide.conditions import JOINER, cut
from poolkeeper_operator.resources import TaskQueueSpec

SHOWN = 5  # kinds of tasks or reasons named
COUNTS_BYTES = 300
ERROR_BYTES = 300
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_KEPT = {JOINER, "\u200c"}  # format characters that scripts and emoji need


def announcement(batch: DeadBatch, spec: TaskQueueSpec) -> str:
    """One sentence about a batch, with its owner and runbook."""
    letter = spec.dead_letter
    tenants = f" of {batch.tenants} tenants" if batch.tenants > 1 else ""
    counts = cut(f"{_top(batch.types)} ({_top(batch.reasons)})", COUNTS_BYTES)
    error = _error(batch)
    parts = [
        f"task {batch.first_task}: {batch.first_reason}",
        f"{batch.count} dead letter{'' if batch.count == 1 else 's'}{tenants}: {counts}",
        *([f"{'' if batch.count == 1 else 'first '}error: {cut(error, ERROR_BYTES)}"] if error else []),
        f"`poolkeeper task timeline {batch.first_task}` tells what happened",
        *([f"owner {letter.owner}"] if letter.owner else []),
        *([f"runbook {letter.runbook_url}"] if letter.runbook_url else []),
    ]
    return "; ".join(parts)


def _error(batch: DeadBatch) -> str:
    said, kind = plain(batch.first_error or ""), plain(batch.first_error_class or "")
    return said or (f"{kind} without a message" if kind else "")


def plain(text: str) -> str:
    """The text as one line: colours of terminals, control and direction characters and line breaks become single spaces."""
    text = _COLOURS.sub("", text)
    return " ".join("".join(c if _shows(c) else " " for c in text).split())


def _shows(character: str) -> bool:
    return character in _KEPT or unicodedata.category(character) not in {"Cc", "Cf", "Cs", "Zl", "Zp"}


def _top(counts: Mapping[str, int]) -> str:
    """The most frequent ones with their counts, and how many others there are."""
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    said = ", ".join(f"{name} {count}" for name, count in ranked[:SHOWN])
    rest = sum(count for _, count in ranked[SHOWN:])
    return f"{said}, others {rest}" if rest else said

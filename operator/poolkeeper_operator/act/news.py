"""What a webhook hears of a batch of dead letters: a CloudEvent 1.0, signed as Standard Webhooks has it (O24). Pure.

Guarantees: the same batch is the same event, byte for byte, with the same id; never a payload, nor an error's text, which may quote
one; bounded. The signature covers id, time and body, so that nobody else can make one, nor send an old one as new for long.
"""

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from poolkeeper.store.posting import Post
from poolkeeper.store.rows import DeadBatch
from poolkeeper_operator.decide.conditions import stamp
from poolkeeper_operator.resources.taskqueue import TaskQueueSpec

TYPE = "dev.poolkeeper.deadletters"
NAMED = 20  # types and reasons that are counted by name; the rest together
OTHERS = "(others)"
ENCODED = "whsec_"  # before a secret that is base64, as Standard Webhooks writes it


def news(batch: DeadBatch, spec: TaskQueueSpec) -> dict[str, Any]:
    """What is told of a batch: counts, the first task, and whom it concerns."""
    return {
        "batch": batch.number,
        "count": batch.count,
        "tenants": batch.tenants,
        "types": _top(batch.types),
        "reasons": _top(batch.reasons),
        "firstTask": str(batch.first_task),
        "firstReason": batch.first_reason,
        "firstErrorClass": batch.first_error_class,
        "lastDiedAt": stamp(batch.at),
        "owner": spec.dead_letter.owner,
        "runbookURL": spec.dead_letter.runbook_url,
    }


def identity(instance: UUID, queue_id: int, number: int) -> str:
    """The event's id: of this installation, queue and batch, whoever sends it, however often."""
    return f"{instance}-{queue_id}-{number}"


def event(post: Post, *, instance: UUID, queue_id: int, namespace: str, queue: str) -> bytes:
    """The CloudEvent as JSON."""
    said = {
        "specversion": "1.0",
        "id": identity(instance, queue_id, post.number),
        "source": f"/poolkeeper/{instance}",
        "type": TYPE,
        "subject": f"{namespace}/{queue}",
        "time": stamp(post.made_at),
        "datacontenttype": "application/json",
        "data": {"namespace": namespace, "queue": queue, **post.news},
    }
    return json.dumps(said, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


def headers(body: bytes, *, identity: str, secret: bytes, now: datetime) -> dict[str, str]:
    """The headers to send it with."""
    moment = str(int(now.timestamp()))
    signed = b".".join((identity.encode(), moment.encode(), body))
    signature = base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()
    return {
        "Content-Type": "application/cloudevents+json; charset=utf-8",
        "User-Agent": "poolkeeper-operator",
        "webhook-id": identity,
        "webhook-timestamp": moment,
        "webhook-signature": f"v1,{signature}",
    }


def key_of(secret: str) -> bytes:
    """The key that a Secret's text stands for: its bytes, or what is encoded behind `whsec_`."""
    if secret.startswith(ENCODED):
        try:
            return base64.b64decode(secret.removeprefix(ENCODED), validate=True)
        except (binascii.Error, ValueError):
            pass
    return secret.encode()


def _top(counts: Mapping[str, int]) -> dict[str, int]:
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    rest = sum(count for _, count in ranked[NAMED:])
    return dict(ranked[:NAMED]) | ({OTHERS: rest} if rest else {})

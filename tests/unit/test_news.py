"""What a webhook is told (O24): one event for a batch, bounded, signed so that a library of Standard Webhooks takes it."""

import base64
import json
from datetime import UTC, datetime
from uuid import UUID

from poolkeeper.store.posting import Post
from poolkeeper.store.rows import DeadBatch
from poolkeeper_operator.act.news import event, headers, key_of, news
from poolkeeper_operator.resources import TaskQueueSpec

SPEC = TaskQueueSpec.model_validate(
    {"databaseRef": {"name": "main"}, "deadLetter": {"owner": "o", "runbookURL": "https://r"}}
)
AT = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)
ONE = UUID(int=1)


def batch(types: dict[str, int]) -> DeadBatch:
    return DeadBatch(
        7, sum(types.values()), ONE, "permanent_error", "ValueError", "card 4111", types, {"permanent_error": 3}, 2, AT
    )


def test_a_flood_of_types_is_told_with_the_right_total() -> None:
    """C40: at most twenty by name, the rest together."""
    told = news(batch({f"t.{n:03}": n + 1 for n in range(50)}), SPEC)
    assert len(told["types"]) == 21
    assert sum(told["types"].values()) == told["count"] == 1275
    assert "4111" not in json.dumps(told)


def test_an_event_is_the_same_whoever_sends_it_and_whenever() -> None:
    post = Post(7, news(batch({"a.b": 3}), SPEC), AT)
    made = [event(post, instance=ONE, queue_id=3, namespace="team", queue="mail") for _ in range(2)]
    assert made[0] == made[1]
    said = json.loads(made[0])
    assert (said["specversion"], said["id"], said["time"]) == ("1.0", f"{ONE}-3-7", "2030-01-01T12:00:00Z")


def test_the_signature_is_that_of_standard_webhooks() -> None:
    """By the example of its specification: secret, id, time, body and what must come out."""
    secret = key_of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    body = b'{"test": 2432232314}'
    made = headers(
        body, identity="msg_p5jXN8AQM9LWM0D4loKWxJek", secret=secret, now=datetime.fromtimestamp(1614265330, UTC)
    )
    assert made["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_a_secret_is_its_bytes_unless_it_says_that_it_is_encoded() -> None:
    assert key_of("plain") == b"plain"
    assert key_of("whsec_" + base64.b64encode(b"\0raw").decode()) == b"\0raw"
    assert key_of("whsec_not base64!") == b"whsec_not base64!"

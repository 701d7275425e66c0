"""The calls of the operator about webhooks: what of batches of dead letters they have not taken yet (O24)."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.types.json import Json

from poolkeeper.store.call import Call, many, value


@dataclass(frozen=True)
class Post:
    """What a webhook is to hear of one batch."""

    number: int
    news: dict[str, Any]
    made_at: datetime


def keep_post(queue_id: int, number: int, news: Mapping[str, Any], *, term: UUID | None = None) -> Call[bool]:
    """Keep what is to be told of a batch until ``post_taken``; False where it was kept before: the first word stands."""
    params = {"queue_id": queue_id, "number": number, "news": Json(dict(news)), "term": term}
    return Call("keep_post", params, value)


def posts(queue_id: int, most: int = 10) -> Call[list[Post]]:
    """What a queue's webhook has not taken yet, the oldest first."""
    return Call("posts", {"queue_id": queue_id, "most": most}, many(Post))


def post_taken(queue_id: int, number: int, *, term: UUID | None = None) -> Call[bool]:
    """The webhook has taken it; False where that was known."""
    return Call("post_taken", {"queue_id": queue_id, "number": number, "term": term}, value)

"""Dead letters go to the webhooks of their queues (O24).

Guarantees: at least once, in the order of the batches, by a stable id: what is to be told lies in the store until the webhook has
answered 2xx, whoever leads by then. Tried again with backoff, for a week. Each try has a time limit, one queue has one at a time, and
runs beside the reconciles: a webhook that hangs holds up no other queue. Redirects are not followed and answers are not read; errors
name the host, never the address, which may hold a secret. Not guaranteed: once only; news of before the webhook was configured.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from poolkeeper.store import calls
from poolkeeper.store.posting import Post
from poolkeeper.store.rows import QueueStats
from poolkeeper_operator.act import news
from poolkeeper_operator.act.trouble import Hook
from poolkeeper_operator.observe.link import Link, Reading
from poolkeeper_operator.observe.secrets import SecretProblem, read_value
from poolkeeper_operator.resources.taskqueue import TaskQueueSpec, Webhook
from poolkeeper_operator.runtime import metrics
from poolkeeper_operator.runtime.context import Context
from poolkeeper_operator.runtime.workqueue import backoff

log = logging.getLogger(__name__)
TIMEOUT = aiohttp.ClientTimeout(total=10.0)
TOGETHER = 32  # tries of all queues at once
PAGE = 10
LONGEST_WISH = 3600.0  # seconds for which a Retry-After is obeyed
FAILING = 3  # tries in a row, from which on the status says so
Name = tuple[str, str]


class Refused(Exception):
    """The webhook did not take it; the message is for the status."""

    def __init__(self, message: str, wait: float = 0.0) -> None:
        super().__init__(message)
        self.wait = wait


@dataclass
class State:
    """Of one queue's webhook."""

    failures: int = 0  # in a row
    problem: str = ""
    due: float = 0.0
    webhook: Webhook | None = None  # that these were made with
    seen: Reading | None = None  # the reading for which all was done
    task: "asyncio.Task[None] | None" = None


class Webhooks:
    """Remembers only how the last tries went; what is to be told, the store knows."""

    def __init__(self, context: Context, clock: Callable[[], float] = time.monotonic) -> None:
        self._context = context
        self._clock = clock
        self._states: dict[Name, State] = {}
        self._slots = asyncio.Semaphore(TOGETHER)
        self._http: aiohttp.ClientSession | None = None

    def hook(self, key: Name, stats: QueueStats) -> Hook:
        """How it stands, for the status."""
        state = self._states.get(key)
        known = state is not None and bool(state.failures or state.seen)
        failing = state is not None and state.failures >= FAILING
        return Hook(waiting=stats.posts, failing=failing, known=known, problem=state.problem if state else "")

    def post(self, manifest: Mapping[str, Any], spec: TaskQueueSpec, stats: QueueStats, link: Link) -> float | None:
        """See to it that what waits is told, beside the reconcile; the seconds until the next look, None if there is nothing."""
        key = (manifest["metadata"]["namespace"], manifest["metadata"]["name"])
        webhook = spec.dead_letter.webhook
        if webhook is None:
            self.forget(key)
            return None
        if not stats.posts:
            return None
        state = self._states.setdefault(key, State())
        if state.webhook != webhook:  # corrected: tried at once
            state.due, state.webhook = 0.0, webhook
        if state.task is not None or (state.seen is link.reading and not state.failures):
            return None  # the end of the task, or the next reading, brings the queue here again
        wait = state.due - self._clock()
        if wait > 0:
            return wait
        state.task = asyncio.create_task(self._work(key, webhook, stats.queue_id, link, state), name=f"webhook {key}")
        return None

    def forget(self, key: Name) -> None:
        """The queue, or its webhook, is gone."""
        state = self._states.pop(key, None)
        if state is not None and state.task is not None:
            state.task.cancel()

    async def close(self) -> None:
        """End what is under way: it is told again by the next operator."""
        tasks = [state.task for state in self._states.values() if state.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._http is not None:
            await self._http.close()

    async def _work(self, key: Name, webhook: Webhook, queue_id: int, link: Link, state: State) -> None:
        """Tell until there is nothing left, or one try fails."""
        try:
            async with self._slots:
                reading = link.reading
                await self._tell_all(key, webhook, queue_id, link, state)
            state.seen = reading
            link.wake()
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001  (whatever it is: it is tried again)
            self._failed(key, state, error)
        finally:
            state.task = None
            self._context.enqueue_queue(key)

    async def _tell_all(self, key: Name, webhook: Webhook, queue_id: int, link: Link, state: State) -> None:
        if link.reading is None:
            return
        who = f'queue "{key[1]}" in namespace "{key[0]}"'
        hint = "the key that its receiver knows"
        secret = await read_value(
            self._context.kube, key[0], who, webhook.secret_ref, "deadLetter.webhook.secretRef", hint
        )
        while posts := await link.call(calls.posts(queue_id, PAGE)):
            for post in posts:
                await self._send(key, webhook.url, news.key_of(secret.text), post, queue_id, link)
                await link.call(calls.post_taken(queue_id, post.number, term=link.term))
                metrics.POSTS.labels(*key, "taken").inc()
                state.failures, state.problem, state.due = 0, "", 0.0

    async def _send(self, key: Name, url: str, secret: bytes, post: Post, queue_id: int, link: Link) -> None:
        assert link.reading is not None  # noqa: S101 - asked before
        instance = link.reading.stats.instance_id
        body = news.event(post, instance=instance, queue_id=queue_id, namespace=key[0], queue=key[1])
        identity = news.identity(instance, queue_id, post.number)
        headers = news.headers(body, identity=identity, secret=secret, now=datetime.now(UTC))
        host = urlsplit(url).hostname or "the webhook"
        self._http = self._http or aiohttp.ClientSession(timeout=TIMEOUT, trust_env=True)
        try:
            async with self._http.post(url, data=body, headers=headers, allow_redirects=False) as answer:
                status, wish = answer.status, answer.headers.get("Retry-After", "")
        except TimeoutError:
            raise Refused(f"{host} did not answer within {TIMEOUT.total:.0f} s") from None
        except (aiohttp.ClientError, ValueError, OSError) as error:
            raise Refused(f"{host} cannot be reached ({type(error).__name__})") from None
        if not 200 <= status < 300:  # noqa: PLR2004
            wait = min(float(wish), LONGEST_WISH) if wish.isascii() and wish.isdigit() else 0.0
            raise Refused(f"{host} answered {status}", wait)

    def _failed(self, key: Name, state: State, error: Exception) -> None:
        ours = isinstance(error, Refused | SecretProblem)
        problem = str(error) if ours else f"it could not be tried ({type(error).__name__})"
        metrics.POSTS.labels(*key, "failed").inc()
        if problem != state.problem:
            log.warning("webhook.failed: %s/%s: %s; it is tried again", *key, problem, exc_info=not ours)
        state.failures += 1
        state.problem = problem
        wish = error.wait if isinstance(error, Refused) else 0.0
        luck = random.random()  # noqa: S311 - spreads tries
        state.due = self._clock() + max(wish, backoff(state.failures, luck))

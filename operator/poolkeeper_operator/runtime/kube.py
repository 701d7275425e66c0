"""The API server on plain dicts: get, list, apply, apply_status, create, delete.

Guarantees: every request has a time limit; 404 on get and delete is an answer, not an error; anything else refused is
a KubeError that names verb and object, as is an answer that is not what was asked for. Desired state is written by server-side apply only, finalizers aside. Whatever changes something asks
`permit` first, when its connection stands, and when the bytes are about to leave (O29); reviews of rights and the Lease itself
do not. Nothing is cached, retried or logged here. Plain dicts, because typed models drop fields that they do not know.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any
from urllib.parse import urlencode
from urllib.request import getproxies

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration

from poolkeeper_operator.runtime.failures import KubeError, NotLeading, message_of, retry_after
from poolkeeper_operator.runtime.kinds import ACCESS_REVIEW, EVENT, LEASE, MANAGER, Resource

Manifest = dict[str, Any]
TIMEOUT = 15.0
PAGE = 500
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
OK_BELOW = 400

Permit = Callable[[], float]
"""The seconds that a write may take which begins now; raises NotLeading."""

_PERMIT: ContextVar[Permit | None] = ContextVar("permit", default=None)


class _Request(aiohttp.ClientRequest):
    """Asks once more when the bytes leave: until the connection stands a request may have waited for long, and what has a body
    is written by a task of its own, which may find itself continued half a minute later.
    """

    async def send(self, conn: Any) -> aiohttp.ClientResponse:
        _ask()
        return await super().send(conn)

    async def write_bytes(self, writer: Any, conn: Any, content_length: int | None = None) -> None:
        try:
            _ask()
        except NotLeading as error:  # who waits for the answer gets it instead
            conn.protocol.set_exception(error)
            return
        await super().write_bytes(writer, conn, content_length)


def _ask() -> None:
    permit = _PERMIT.get()
    if permit is not None:
        permit()


def _nobody() -> float:
    raise NotLeading("this program only reads from the API server")


class Kube:
    """One client for all kinds; `writes` counts what was sent to change something, `permit` says whether it may be."""

    def __init__(self, settings: Configuration) -> None:
        # where no proxy is named, the environment is not asked: for each request a thread would look for a netrc file
        settings.client_session_kwargs = {"request_class": _Request, "trust_env": bool(getproxies())}
        self._settings = settings
        self._client = ApiClient(settings)
        self.writes = 0
        self.permit: Permit = _nobody

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def get(
        self, resource: Resource, namespace: str | None, name: str, *, within: float = TIMEOUT
    ) -> Manifest | None:
        """The object, None if it is not there."""
        try:
            found = await self._send("GET", resource.path(namespace, name), within=within)
        except KubeError as error:
            if error.not_found:
                return None
            raise
        return self._certain(found, "GET", resource.kind, name)

    async def list(self, resource: Resource, namespace: str | None = None, *, selector: str = "") -> list[Manifest]:
        """All objects of a namespace, or of the cluster; in pages, as one consistent list."""
        query = {"limit": str(PAGE), **({"labelSelector": selector} if selector else {})}
        while True:
            try:
                return [*await self._pages(resource, namespace, dict(query))]
            except KubeError as error:
                if not error.expired or "limit" not in query:
                    raise
                del query["limit"]  # it changed faster than the pages could be read: all at once

    async def apply(
        self, resource: Resource, manifest: Manifest, *, manager: str = MANAGER, sub: str | None = None
    ) -> Manifest:
        """Server-side apply of the fields in `manifest`, taking them over from other managers."""
        meta = manifest["metadata"]
        query = {"fieldManager": manager, "force": "true"}
        path = resource.path(meta.get("namespace"), meta["name"], sub)
        answer = await self._write("PATCH", path, query, manifest, APPLY)
        return self._certain(answer, "PATCH", resource.kind, meta["name"])

    async def apply_status(self, resource: Resource, namespace: str, name: str, status: Mapping[str, Any]) -> Manifest:
        """Server-side apply of the whole status; what it leaves out is removed."""
        manifest = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"namespace": namespace, "name": name},
            "status": dict(status),
        }
        return await self.apply(resource, manifest, sub="status")

    async def set_finalizers(
        self, resource: Resource, manifest: Mapping[str, Any], finalizers: Sequence[str]
    ) -> Manifest:
        """Replace the finalizers of an object as it was read; a conflict if it changed since, never a new object.

        Not by server-side apply: an entry that a user's manifest brought along is theirs there, and would stay.
        """
        meta = manifest["metadata"]
        body = {"metadata": {"resourceVersion": meta["resourceVersion"], "finalizers": [*finalizers]}}
        path = resource.path(meta["namespace"], meta["name"])
        return await self._write("PATCH", path, {"fieldManager": MANAGER}, body, MERGE)

    async def create(self, resource: Resource, manifest: Manifest, namespace: str | None = None) -> Manifest:
        """Create; 409 if it is there. For Events; desired state is applied instead."""
        return await self._write("POST", resource.path(namespace), {"fieldManager": MANAGER}, manifest)

    async def review(self, attributes: Manifest) -> Manifest:
        """Ask what this identity may do."""
        review = {
            "apiVersion": ACCESS_REVIEW.api_version,
            "kind": ACCESS_REVIEW.kind,
            "spec": {"resourceAttributes": attributes},
        }
        return await self._send("POST", ACCESS_REVIEW.path(), None, review)

    async def create_lease(self, lease: Manifest, *, within: float) -> Manifest:
        """Make the Lease; 409 if somebody else did."""
        return await self._send("POST", LEASE.path(lease["metadata"]["namespace"]), None, lease, within=within)

    async def replace_lease(self, lease: Manifest, *, within: float) -> Manifest:
        """Replace the Lease as it was seen; 409 if it has changed since."""
        path = LEASE.path(lease["metadata"]["namespace"], lease["metadata"]["name"])
        return await self._send("PUT", path, None, lease, within=within)

    async def create_event(self, event: Manifest) -> bool:
        """Post an Event; False if one of that name has been posted before."""
        try:
            await self.create(EVENT, event, event["metadata"]["namespace"])
        except KubeError as error:
            if error.conflict:
                return False
            raise
        return True

    async def delete(self, resource: Resource, namespace: str | None, name: str) -> bool:
        """Delete; False if it was not there."""
        try:
            await self._write("DELETE", resource.path(namespace, name))
        except KubeError as error:
            if error.not_found:
                return False
            raise
        return True

    async def version(self) -> tuple[int, int]:
        """Major and minor of the API server."""
        found = await self._send("GET", "/version")
        return int(found["major"]), int("".join(c for c in found["minor"] if c.isdigit()))

    async def _pages(self, resource: Resource, namespace: str | None, query: dict[str, str]) -> Iterable[Manifest]:
        found = []
        while True:
            page = await self._send("GET", resource.path(namespace), query)
            self._certain(page, "GET", f"{resource.kind}List")
            for item in page.get("items") or []:
                item.setdefault("kind", resource.kind)
                item.setdefault("apiVersion", resource.api_version)
                found.append(item)
            more = page["metadata"].get("continue")
            if not more:
                return found
            query["continue"] = more

    def _certain(self, found: Manifest, verb: str, kind: str, name: str | None = None) -> Manifest:
        """What was asked for, or an error: a list that is none would be an empty one, and all that is known gone."""
        meta = found.get("metadata")
        if found.get("kind") != kind or not isinstance(meta, dict) or name not in {None, meta.get("name")}:
            what = f'{verb} {kind} "{name or ""}"'
            raise KubeError(0, what, f"{self._settings.host} answered with something else: {str(found)[:100]}")
        return found

    async def _write(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Manifest | None = None,
        content_type: str = "application/json",
    ) -> Manifest:
        """A request that changes something: only while permitted, and given up before another process could lead."""
        within = min(TIMEOUT, self.permit())
        asked = _PERMIT.set(self.permit)
        try:
            return await self._send(method, path, query, body, content_type, within=within)
        finally:
            _PERMIT.reset(asked)

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Manifest | None = None,
        content_type: str = "application/json",
        *,
        within: float = TIMEOUT,
    ) -> Manifest:
        if method != "GET":
            self.writes += 1
        what = f"{method} {path}"
        headers = {"Accept": "application/json", "Content-Type": content_type}
        token = await self._settings.get_api_key_with_prefix("BearerToken", alias="authorization")
        if token:
            headers["Authorization"] = token
        url = self._settings.host + path + (f"?{urlencode(query)}" if query else "")
        try:
            answer = await self._client.call_api(method, url, headers, body, _request_timeout=within)
            raw = await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise KubeError(
                0, what, f"no answer from {self._settings.host}: {error or type(error).__name__}"
            ) from error
        if answer.status >= OK_BELOW:
            raise KubeError(answer.status, what, message_of(raw), retry_after(answer.headers))
        try:
            found: Manifest = json.loads(raw)
        except ValueError as error:
            raise KubeError(0, what, f"the answer of {self._settings.host} is not whole: {error}") from error
        if not isinstance(found, dict):
            raise KubeError(0, what, f"the answer of {self._settings.host} is no object: {str(found)[:100]}")
        return found

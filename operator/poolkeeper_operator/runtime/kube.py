"""The API server on plain dicts: get, list, apply, apply_status, create, delete.

Guarantees: every request has a time limit; 404 on get and delete is an answer, not an error; anything else refused is
a KubeError that names verb and object. Desired state is written by server-side apply only. Nothing is cached, retried
or logged here. Plain dicts, because typed models drop fields that they do not know.
"""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration

from poolkeeper_operator.runtime.failures import KubeError
from poolkeeper_operator.runtime.kinds import EVENT, MANAGER, Resource

Manifest = dict[str, Any]
TIMEOUT = 15.0
PAGE = 500
APPLY = "application/apply-patch+yaml"
OK_BELOW = 400


class Kube:
    """One client for all kinds; `writes` counts what was sent to change something."""

    def __init__(self, settings: Configuration) -> None:
        self._settings = settings
        self._client = ApiClient(settings)
        self.writes = 0

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Manifest | None:
        """The object, None if it is not there."""
        try:
            return await self._send("GET", resource.path(namespace, name))
        except KubeError as error:
            if error.not_found:
                return None
            raise

    async def list(self, resource: Resource, namespace: str | None = None, *, selector: str = "") -> list[Manifest]:
        """All objects of a namespace, or of the cluster; in pages, as one consistent list."""
        found: list[Manifest] = []
        query = {"limit": str(PAGE), **({"labelSelector": selector} if selector else {})}
        while True:
            page = await self._send("GET", resource.path(namespace), query)
            for item in page.get("items") or []:
                item.setdefault("kind", resource.kind)
                item.setdefault("apiVersion", resource.api_version)
                found.append(item)
            more = page["metadata"].get("continue")
            if not more:
                return found
            query["continue"] = more

    async def apply(
        self, resource: Resource, manifest: Manifest, *, manager: str = MANAGER, sub: str | None = None
    ) -> Manifest:
        """Server-side apply of the fields in `manifest`, taking them over from other managers."""
        meta = manifest["metadata"]
        query = {"fieldManager": manager, "force": "true"}
        path = resource.path(meta.get("namespace"), meta["name"], sub)
        return await self._send("PATCH", path, query, manifest, APPLY)

    async def apply_status(self, resource: Resource, namespace: str, name: str, status: Mapping[str, Any]) -> Manifest:
        """Server-side apply of the whole status; what it leaves out is removed."""
        manifest = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"namespace": namespace, "name": name},
            "status": dict(status),
        }
        return await self.apply(resource, manifest, sub="status")

    async def create(self, resource: Resource, manifest: Manifest, namespace: str | None = None) -> Manifest:
        """Create; 409 if it is there. For reviews and Events; desired state is applied instead."""
        return await self._send("POST", resource.path(namespace), {"fieldManager": MANAGER}, manifest)

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
            await self._send("DELETE", resource.path(namespace, name))
        except KubeError as error:
            if error.not_found:
                return False
            raise
        return True

    async def version(self) -> tuple[int, int]:
        """Major and minor of the API server."""
        found = await self._send("GET", "/version")
        return int(found["major"]), int("".join(c for c in found["minor"] if c.isdigit()))

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Manifest | None = None,
        content_type: str = "application/json",
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
            answer = await self._client.call_api(method, url, headers, body, _request_timeout=TIMEOUT)
            raw = await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise KubeError(
                0, what, f"no answer from {self._settings.host}: {error or type(error).__name__}"
            ) from error
        if answer.status >= OK_BELOW:
            raise KubeError(answer.status, what, _message(raw))
        found: Manifest = json.loads(raw)
        return found


def _message(raw: bytes) -> str:
    try:
        return str(json.loads(raw)["message"])
    except (ValueError, KeyError, TypeError):
        return raw.decode(errors="replace")[:300]

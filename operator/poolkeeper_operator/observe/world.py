"""The objects of the API server as last seen, by kind, namespace and name.

Guarantees: an older version of an object never replaces a newer one, nor brings back one that is gone; what a complete list
lacks is forgotten (kopf alone never notices objects that vanish during a gap of its watch). Not guaranteed: freshness;
whoever acts on it writes idempotently, and treats a missing object as gone.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from poolkeeper_operator.observe import nodes

Manifest = dict[str, Any]
Name = tuple[str, str]  # namespace, name
GRAVES = 10_000  # objects gone of which late events are still known to be late


class World:
    """What is known; filled by events and by whole lists."""

    def __init__(self) -> None:
        self._objects: dict[str, dict[Name, Manifest]] = {}
        self._pods: dict[Name, set[str]] = {}  # of a pool: the names of its pods
        self._gone: OrderedDict[tuple[str, Name], int] = (
            OrderedDict()
        )  # the version at which it went, or the last known

    def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """The object as last seen."""
        return self._objects.get(kind, {}).get((namespace, name))

    def all(self, kind: str) -> Iterator[Manifest]:
        """All of a kind; a copy, so that events may arrive meanwhile."""
        return iter(list(self._objects.get(kind, {}).values()))

    def pods(self, namespace: str, pool: str) -> list[Manifest]:
        """The pods that carry the label of a pool."""
        seen = self._objects.get("Pod", {})
        names = self._pods.get((namespace, pool), set())
        return [seen[namespace, name] for name in sorted(names) if (namespace, name) in seen]

    def pools_on(self, node: str) -> set[Name]:
        """The pools, by namespace and name, of which pods are on this node."""
        pods = self._objects.get("Pod", {}).values()
        return {(pod["metadata"]["namespace"], pool_of(pod)) for pod in pods if pod["spec"].get("nodeName") == node}

    def put(self, kind: str, seen: Mapping[str, Any]) -> bool:
        """Note an object; False if what is known is newer, or the same, or if it has gone since."""
        manifest = trimmed(kind, seen)
        key = name_of(manifest)
        known = self._objects.setdefault(kind, {}).get(key)
        if known is not None and version(known) >= version(manifest):
            return False
        if version(manifest) <= self._gone.get((kind, key), 0):
            return False
        self._objects[kind][key] = manifest
        if kind == "Pod":
            self._index(manifest)
        return True

    def drop(self, kind: str, namespace: str, name: str, at: int = 0) -> bool:
        """Forget an object that went at version `at`, or was not found (0); False if it was not known.

        One that was not found is believed again when a list has it as it was: nobody told of its end.
        """
        gone = self._objects.get(kind, {}).pop((namespace, name), None)
        grave = (kind, (namespace, name))
        last = version(gone) if gone else 0
        self._gone[grave] = max(at, last if at else last - 1, self._gone.pop(grave, 0))
        while len(self._gone) > GRAVES:
            self._gone.popitem(last=False)
        if gone is not None and kind == "Pod":
            self._pods.get((namespace, pool_of(gone)), set()).discard(name)
        return gone is not None

    def replace(self, kind: str, listed: Iterable[Mapping[str, Any]], since: int) -> set[Name]:
        """Take over a complete list read when the newest version known was `since`; the names that changed or vanished."""
        listed = list(listed)
        changed = {name_of(item) for item in listed if self.put(kind, item)}
        there = {name_of(item) for item in listed}
        for key, known in list(self._objects.get(kind, {}).items()):
            if key not in there and version(known) <= since:  # a newer one was created while the list was under way
                self.drop(kind, *key)
                changed.add(key)
        return changed

    def newest(self, kind: str) -> int:
        """The highest version seen of a kind."""
        return max((version(known) for known in self._objects.get(kind, {}).values()), default=0)

    def pools_with_pods(self) -> Iterator[Name]:
        """The pools, by namespace and name, of which pods are there."""
        return iter([pool for pool, names in self._pods.items() if names])

    def _index(self, pod: Manifest) -> None:
        namespace, name = name_of(pod)
        self._pods.setdefault((namespace, pool_of(pod)), set()).add(name)


def name_of(manifest: Mapping[str, Any]) -> Name:
    """Namespace and name."""
    meta = manifest["metadata"]
    return meta.get("namespace", ""), meta["name"]


def version(manifest: Mapping[str, Any]) -> int:
    """The resourceVersion as a number; the API server's are, and they rise."""
    text = str(manifest["metadata"].get("resourceVersion", "0"))
    return int(text) if text.isdigit() else 0


def pool_of(pod: Mapping[str, Any]) -> str:
    """The pool whose label a pod carries."""
    return str((pod["metadata"].get("labels") or {}).get("poolkeeper.dev/pool", ""))


def trimmed(kind: str, seen: Mapping[str, Any]) -> Manifest:
    """The object without what is never looked at: a cluster has many, and their bookkeeping is larger than they are."""
    meta = dict(seen["metadata"])
    managed = meta.pop("managedFields", None)
    if kind == "Node":
        meta.pop("annotations", None)
        return {"metadata": meta, "spec": nodes.trimmed(seen)}
    if kind == "Pod":
        full = seen.get("spec") or {}
        spec = {"nodeName": full.get("nodeName"), "tolerations": full.get("tolerations") or []}
        return {"metadata": meta, "spec": spec, "status": seen.get("status") or {}}
    if managed:
        meta["managedFields"] = [_scalers(entry) for entry in managed]
    return {**dict(seen), "metadata": meta}


def _scalers(entry: Mapping[str, Any]) -> Manifest:
    """Of who owns which field since when, whether it is `spec.replicas` or `spec.scaling.mode`: nothing else is asked."""
    spec = (entry.get("fieldsV1") or {}).get("f:spec") or {}
    owned: Manifest = {"f:replicas": {}} if "f:replicas" in spec else {}
    if "f:mode" in (spec.get("f:scaling") or {}):
        owned["f:scaling"] = {"f:mode": {}}
    return {
        "manager": entry.get("manager", ""),
        "time": entry.get("time"),
        "fieldsV1": {"f:spec": owned} if owned else {},
    }

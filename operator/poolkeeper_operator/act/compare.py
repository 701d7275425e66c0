"""Whether an object already says what we would write. Pure.

Guarantees: defaults that the API server adds and fields of others do not count as differences; the first difference is
named by its path, so that a log line says why something is written.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

_KEYS = ("name", "containerPort", "mountPath", "uid", "topologyKey", "key")
_QUANTITY = re.compile("^([0-9]+(?:[.][0-9]+)?)(m|k|M|G|T|Ki|Mi|Gi|Ti|)$")
_UNITS: dict[str, float] = {
    "m": 10**-3,
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}


def digest(manifest: object, length: int = 16) -> str:
    """A short stable hash of any JSON value."""
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def difference(live: object, wanted: object, path: str = "") -> str | None:
    """The path of the first field of `wanted` that `live` does not carry; None if it carries all of them."""
    if isinstance(wanted, Mapping):
        if not isinstance(live, Mapping):
            return None if not wanted and live is None else path
        found = (difference(live.get(key), value, f"{path}.{key}") for key, value in sorted(wanted.items()))
        return next(filter(None, found), None)
    if isinstance(wanted, Sequence) and not isinstance(wanted, str):
        return _list_difference(live, wanted, path)
    return None if live == wanted or _same_quantity(live, wanted) or _empty(live, wanted) else path


def _list_difference(live: object, wanted: Sequence[Any], path: str) -> str | None:
    if not isinstance(live, Sequence) or isinstance(live, str):
        return None if not wanted and live is None else path
    key = next((k for k in _KEYS if wanted and all(isinstance(item, Mapping) and k in item for item in wanted)), None)
    if key is None:
        if len(live) != len(wanted):
            return path
        pairs = zip(live, wanted, strict=True)
        return next(filter(None, (difference(a, b, f"{path}[{n}]") for n, (a, b) in enumerate(pairs))), None)
    known = {item[key]: item for item in live if isinstance(item, Mapping) and key in item}
    return next(
        filter(None, (difference(known.get(item[key]), item, f"{path}[{key}={item[key]}]") for item in wanted)), None
    )


def _empty(live: object, wanted: object) -> bool:
    return live is None and wanted in {"", 0}  # what `omitempty` drops


def _same_quantity(live: object, wanted: object) -> bool:
    a, b = _quantity(live), _quantity(wanted)
    return a is not None and a == b


def _quantity(value: object) -> float | None:
    found = _QUANTITY.match(str(value))
    return None if found is None else round(float(found[1]) * _UNITS[found[2]], 6)

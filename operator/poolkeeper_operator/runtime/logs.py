"""One JSON line per record, with the fields of a fixed list; ids are fields, never prose.

kopf's records carry whole settings objects and the object's body in private extras: only what is listed goes out.
"""

import json
import logging
import sys
from datetime import UTC, datetime

FIELDS = (
    "key",
    "failures",
    "namespace",
    "kind",
    "database",
    "pool",
    "queue",
    "decision",
    "seconds",
    "count",
    "code",
    "namespaces",
    "port",
)


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """The line; an exception becomes a field of it."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update({field: getattr(record, field) for field in FIELDS if hasattr(record, field)})
        about = getattr(record, "k8s_ref", None)
        if isinstance(about, dict):
            line.update({field: about[field] for field in ("kind", "namespace", "name") if about.get(field)})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure(form: str, level: str) -> None:
    """Send everything to stderr as `json` or `text`; kopf and aiohttp speak only when something is wrong."""
    handler = logging.StreamHandler(sys.stderr)
    if form == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("kopf").setLevel(logging.WARNING)
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    logging.getLogger("asyncio").setLevel(logging.WARNING)

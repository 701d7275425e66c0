"""What the worker writes to its log: one line per record, text for people or JSON for machines, redacted (Q54)."""

import json
import logging
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime

from poolkeeper.codes import Code
from poolkeeper.errors import Misconfigured
from poolkeeper.redact import redact
from poolkeeper.store.rows import Claimed

_log = logging.getLogger("poolkeeper.worker")

TRACE_EVERY = 60.0
"""Seconds between two tracebacks of the same kind of error."""

_PLAIN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "taskName"}


def set_up(environ: Mapping[str, str]) -> None:
    """Log to stderr as POOLKEEPER_LOG_FORMAT and POOLKEEPER_LOG_LEVEL say; raises Misconfigured."""
    form = environ.get("POOLKEEPER_LOG_FORMAT") or ("text" if sys.stderr.isatty() else "json")
    level = (environ.get("POOLKEEPER_LOG_LEVEL") or "info").upper()
    if form not in {"text", "json"}:
        raise Misconfigured(Code.SETTING_INVALID, f'POOLKEEPER_LOG_FORMAT is "{form}"; expected text or json')
    if level not in {"DEBUG", "INFO", "WARNING", "ERROR"}:
        raise Misconfigured(
            Code.SETTING_INVALID, f'POOLKEEPER_LOG_LEVEL is "{level.lower()}"; expected debug, info, warning or error'
        )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Text() if form == "text" else Json())
    logging.basicConfig(level=level, handlers=[handler], force=True)


class Text(logging.Formatter):
    """For people: time, level, message, fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, and the traceback below it if there is one."""
        fields = "".join(f" {name}={value}" for name, value in _fields(record).items())
        moment = datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds")
        trace = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return redact(f"{moment} {record.levelname.lower():7} {record.getMessage()}{fields}{trace}")


class Json(logging.Formatter):
    """For machines: one object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one JSON object without a line break."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(record.getMessage()),
            **{
                name: redact(str(value)) if not isinstance(value, int | float) else value
                for name, value in _fields(record).items()
            },
        }
        if record.exc_info:
            line["exception"] = redact(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in record.__dict__.items() if name not in _PLAIN}


class Traces:
    """Tracebacks in the log: of each kind of error the first, and then one a minute; the error's line always."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, type[BaseException]], float] = {}

    def tell(self, claimed: Claimed, error: BaseException) -> None:
        """Log the traceback of an error that a handler raised, unless its like was logged just now."""
        kind, now = (claimed.type, type(error)), time.monotonic()
        if now - self._told.get(kind, -TRACE_EVERY) >= TRACE_EVERY:
            self._told[kind] = now
            _log.warning("task %s (%s): its handler raised", claimed.task_id, claimed.type, exc_info=error)

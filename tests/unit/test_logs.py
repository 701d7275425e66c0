"""Q54: what the worker writes to its log."""

import json
import logging
import sys

import pytest

from poolkeeper import Misconfigured
from poolkeeper.worker.logs import Json, Text, set_up


def record(message: str, **fields: object) -> logging.LogRecord:
    made = logging.makeLogRecord({"name": "x", "levelno": logging.WARNING, "levelname": "WARNING", "msg": message})
    made.__dict__.update(fields)
    return made


def failure() -> logging.LogRecord:
    made = record("failed")
    try:
        int("password=hunter2\nsecond line")
    except ValueError:
        made.exc_info = sys.exc_info()
    return made


def test_json_is_one_line_with_the_fields_of_the_record() -> None:
    """Ids are fields, never prose; the traceback is one too."""
    line = Json().format(record("ä %s", task_id="7", delivery=2))
    assert "\n" not in line
    said = json.loads(line)
    assert (said["level"], said["message"], said["task_id"], said["delivery"]) == ("warning", "ä %s", "7", 2)
    said = json.loads(Json().format(failure()))
    assert "Traceback" in said["exception"]
    assert "hunter2" not in said["exception"]


def test_text_is_for_people() -> None:
    """Time, level, message, fields; the traceback below, redacted too."""
    line = Text().format(record("token pkt_abc", task_id="7"))
    assert line.endswith("warning token pkt_*** task_id=7")
    assert "hunter2" not in Text().format(failure())


@pytest.mark.parametrize(("name", "value"), [("POOLKEEPER_LOG_FORMAT", "xml"), ("POOLKEEPER_LOG_LEVEL", "loud")])
def test_a_wrong_word_is_refused_by_name(name: str, value: str) -> None:
    """Contract 4."""
    with pytest.raises(Misconfigured, match=name):
        set_up({name: value})

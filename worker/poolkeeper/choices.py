"""What a queue's policy can choose between."""

from enum import StrEnum


class Ordering(StrEnum):
    """What a dead letter does to the tasks of its ordering key that were submitted after it."""

    BLOCK = "Block"
    SKIP = "Skip"


class WakeUp(StrEnum):
    """How workers hear of new tasks."""

    NOTIFY = "Notify"
    POLL = "Poll"

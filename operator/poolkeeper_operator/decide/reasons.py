"""The words with which a pool explains itself: one list for conditions, Events, metrics, `explain` and the recorded decision.

Guarantees: names are CamelCase as Kubernetes asks of a condition's reason, and stable: they are part of the API.
"""

from enum import StrEnum


class Want(StrEnum):
    """Why a pool wants its size, before any limit."""

    NOTHING_TO_DO = "NothingToDo"  # no runnable task, nothing running
    BUSY_SLOTS = "BusySlots"  # what runs now needs these pods
    BACKLOG = "Backlog"  # the backlog would not start within targetAge otherwise
    AGE = "Age"  # the oldest runnable task is older than targetAge
    SUSPECTS = "Suspects"  # a task waits for a run of its own after it killed a worker
    WAITING_FOR_ZERO = "WaitingForZero"  # idle, but not yet for toZeroAfter
    MINIMUM = "Minimum"  # spec.scaling.min
    NODES_LEAVING = "NodesLeaving"  # pods on nodes that are about to go claim nothing more: others take their place
    HOLD = "Hold"  # spec.scaling.mode: Hold
    EXTERNAL = "External"  # spec.scaling.mode: External: what another scaler asks for
    HOLD_AND_DRAIN = "HoldAndDrain"  # spec.scaling.mode: HoldAndDrain
    SIGNAL_LOST = "SignalLost"  # the queues could not be read: nothing is guessed


class LimitedBy(StrEnum):
    """What keeps a pool below the size it wants."""

    NONE = "None"
    MAXIMUM = "Maximum"  # spec.scaling.max
    MAX_RUNNING = "MaxRunning"  # spec.maxRunning
    PROVIDER_QUOTA = "ProviderQuota"  # its share of a provider's quota
    CONNECTIONS = "Connections"  # its share of maxWorkerConnections of its Database
    PODS_CANNOT_START = "PodsCannotStart"  # pods asked for earlier do not start; more would not either


class RateLimitedBy(StrEnum):
    """What keeps a pool from taking its size at once."""

    NONE = "None"
    UP_WINDOW = "UpWindow"  # spec.scaling.up.window
    UP_STEP = "UpStep"  # spec.scaling.up.maxStep*
    DOWN_WINDOW = "DownWindow"  # spec.scaling.down.window, or the operator has not watched for that long
    DOWN_STEP = "DownStep"  # spec.scaling.down.maxStep*
    ROLLOUT = "Rollout"  # no scale-down of ours while a rollout runs
    CLOSING = "Closing"  # HoldAndDrain: the store is told to start nothing more before any pod is ended
    BUSY_PODS = "BusyPods"  # the pods in excess still work; they claim nothing and go once they are idle


class QuotaReason(StrEnum):
    """Why a pool has its share of a provider."""

    SHARED = "Shared"  # its fair share by weight
    WAITING = "WaitingForRelease"  # its share is still in use by another pool's running tasks
    MISSING = "QuotaMissing"  # no ProviderQuota of that name: fail closed
    MALFORMED = "QuotaMalformed"  # no usable limit: fail closed
    SUSPENDED = "QuotaSuspended"  # spec.suspended
    FORBIDDEN = "NamespaceNotAllowed"  # the quota does not allow the pool's namespace
    TOO_SMALL = "QuotaTooSmall"  # one task uses more than the whole quota
    UNDECLARED = "UseNotDeclared"  # the quota bounds what perTask says nothing about: fail closed
    ELSEWHERE = "QuotaElsewhere"  # its windows are granted in another database than the pool's


class GraceReason(StrEnum):
    """Why a pool has its grace period."""

    NO_SAMPLES = "NoSamples"  # no drain was measured yet: the safe default
    FEW_SAMPLES = "FewSamples"  # too few to trust a short value: not below the safe default
    MEASURED = "Measured"  # from the measured drains
    CUT_SHORT = "CutShort"  # drains were cut by the present grace: longer than what was measured
    MINIMUM = "MinGrace"  # spec.drain.minGrace
    MAXIMUM = "MaxGrace"  # spec.drain.maxGrace: less than what drains need
    LOWERING = "Lowering"  # less is needed; it is lowered by one step per rollout


class LengthenReason(StrEnum):
    """Why the operator itself rolls a pool out for a longer grace period, or does not."""

    LONG_ENOUGH = "LongEnough"  # the present grace is not shorter than what is needed
    FEW_CUTS = "FewCuts"  # too few drains were cut by the present grace: it rides on the next rollout of the user
    ROLLING = "RollingOut"  # a rollout is under way
    TOO_SOON = "TooSoon"  # the last one of the operator's own is not long ago
    DRAINS_CUT = "DrainsCut"  # it rolls out, a pod at a time

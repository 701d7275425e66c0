"""On which nodes a pool's pods may run, and in which sandbox.

Guarantees: a toleration that the API server would refuse in a pod is refused here at apply, with the remedy. Keys of nodeSelector it
judges itself, when the Deployment is applied: a schema has no place for the form of a key.
"""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import ConfigDict, Field, model_validator

from poolkeeper.policy_parts import rules
from poolkeeper_operator.resources.parts import Model

KEY_PATTERN = r"^([a-z0-9]([-.a-z0-9]*[a-z0-9])?/)?[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?$"
VALUE_PATTERN = r"^([A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?)?$"
LabelKey = Annotated[str, Field(min_length=1, max_length=253, pattern=KEY_PATTERN)]
LabelValue = Annotated[str, Field(max_length=63, pattern=VALUE_PATTERN)]

_NO_KEY = "a toleration without a key is for every taint; set operator: Exists, or the key"
_NO_VALUE = "a toleration with operator: Exists takes any value; remove value, or set operator: Equal"
_SECONDS = "tolerationSeconds counts after a NoExecute taint alone; set effect: NoExecute, or remove it"


class TolerationOperator(StrEnum):
    """How a toleration's key is compared."""

    EQUAL = "Equal"
    EXISTS = "Exists"


class TaintEffect(StrEnum):
    """What a taint does to pods that do not tolerate it."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class Toleration(Model):
    """A taint that the pods put up with, as in a Pod."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            ("has(self.key) || (has(self.operator) && self.operator == 'Exists')", _NO_KEY),
            ("!(has(self.value) && has(self.operator) && self.operator == 'Exists')", _NO_VALUE),
            ("!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')", _SECONDS),
        )
    )

    key: LabelKey | None = Field(None, description="The taint's key. Absent: every key, with operator Exists.")
    operator: TolerationOperator = Field(
        TolerationOperator.EQUAL, description="Equal: key and value are the taint's. Exists: the key is."
    )
    value: LabelValue | None = Field(None, description="The taint's value.")
    effect: TaintEffect | None = Field(None, description="The taint's effect. Absent: every one.")
    toleration_seconds: int | None = Field(
        None,
        ge=0,
        le=31_536_000,
        description="Seconds after which a NoExecute taint evicts all the same. Absent: never.",
    )

    @model_validator(mode="after")
    def _as_a_pod_takes_it(self) -> "Toleration":
        exists = self.operator is TolerationOperator.EXISTS
        if self.key is None and not exists:
            raise ValueError(_NO_KEY)
        if self.value is not None and exists:
            raise ValueError(_NO_VALUE)
        if self.toleration_seconds is not None and self.effect is not TaintEffect.NO_EXECUTE:
            raise ValueError(_SECONDS)
        return self

    def as_pod_field(self) -> dict[str, Any]:
        """The toleration as it goes into the Deployment."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class TopologySpread(StrEnum):
    """Whether the pods keep away from each other."""

    PREFERRED = "Preferred"
    REQUIRED = "Required"
    NONE = "None"


class Placement(Model):
    """On which nodes the pods may run."""

    node_selector: Annotated[dict[str, LabelValue], Field(max_length=20)] = Field(
        {}, description="Labels that a node must have."
    )
    tolerations: tuple[Toleration, ...] = Field(
        (),
        max_length=20,
        description="Taints that the pods put up with. Of a node whose taint they tolerate for good they are not taken away (O23).",
    )
    topology_spread: TopologySpread = Field(
        TopologySpread.PREFERRED,
        description="Preferred: over several nodes where that is possible. Required: else a pod waits for room elsewhere. None: as the scheduler likes.",
    )

"""Parts that several resources share: references, conditions, and types with the rules that the API server checks.

Guarantees: every string, list and map has a bound (CEL costs depend on it); a rule's message says what to do.
"""

from collections.abc import Callable
from ipaddress import ip_network
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from poolkeeper.policy_parts import PolicyModel

LABEL_PATTERN = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
CIDR_PATTERN = "^([0-9]{1,3}([.][0-9]{1,3}){3}/[0-9]{1,2}|[0-9a-fA-F:.]{2,45}/[0-9]{1,3})$"
PERCENT_PATTERN = "^(100|[1-9]?[0-9])%$"

Name = Annotated[str, Field(min_length=1, max_length=63, pattern=LABEL_PATTERN)]
PoolName = Annotated[str, Field(min_length=1, max_length=52, pattern=LABEL_PATTERN)]
# Secrets, service accounts and the like may have dots in their names.
ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$")]


class Model(PolicyModel):
    """A part of a spec."""


class StatusModel(PolicyModel):
    """A part of a status; absent parts are not written."""

    def as_status(self) -> dict[str, Any]:
        """The object as it goes to `/status`."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class Rule:
    """A CEL rule on a field with its Python twin; both refuse with the same message."""

    def __init__(self, cel: str, message: str, check: Callable[[Any], bool] | None = None) -> None:
        self._cel, self._message, self._check = cel, message, check

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Check after the type's own reading; a transition rule has no twin."""
        return core_schema.no_info_after_validator_function(self._validate, handler(source))

    def _validate(self, value: Any) -> Any:
        if self._check and not self._check(value):
            raise ValueError(self._message)
        return value

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Add the rule to those that are there."""
        json_schema = dict(handler(schema))
        rules = [*json_schema.get("x-kubernetes-validations", []), {"rule": self._cel, "message": self._message}]
        return {**json_schema, "x-kubernetes-validations": rules}


IMMUTABLE = Rule("self == oldSelf", "cannot be changed; delete the object and apply it anew")


class IntOrString:
    """Kubernetes' IntOrString: a number, or a string of the given form."""

    def __init__(self, pattern: str, example: str) -> None:
        self._pattern, self._example = pattern, example

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """A whole number from 0, or a string that matches."""
        number = core_schema.int_schema(strict=True, ge=0, le=1_000_000)
        text = core_schema.str_schema(strict=True, pattern=self._pattern, max_length=64)
        return core_schema.union_schema([number, text], mode="left_to_right")

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Structural schemas spell a union of types only like this."""
        return {"x-kubernetes-int-or-string": True, "pattern": self._pattern, "maxLength": 64}


IntOrPercent = Annotated[int | str, IntOrString(PERCENT_PATTERN, "25%")]
# The form of Kubernetes' own generated schemas.
Quantity = Annotated[
    int | str,
    IntOrString(r"^[0-9]{1,15}(\.[0-9]{1,9})?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$", "100m"),
]


def is_zero(value: int | str) -> bool:
    """Whether an IntOrPercent means none at all."""
    return value in {0, "0%"}


class NameRef(Model):
    """A reference by name within the namespace."""

    name: Name = Field(description="Its name.")


class SecretRef(Model):
    """A key of a Secret in the same namespace."""

    name: ObjectName = Field(description="Name of the Secret.")
    key: str = Field("dsn", min_length=1, max_length=253, pattern="^[-._a-zA-Z0-9]+$", description="Key in the Secret.")


def _network(value: str) -> str:
    try:
        return str(ip_network(value))
    except ValueError as error:
        message = f"{error}; give a network such as 10.64.0.0/10, or one address as 10.64.0.1/32"
        raise ValueError(message) from None


class NetworkPeer(Model):
    """A network that pods may open connections to."""

    cidr: Annotated[str, AfterValidator(_network)] = Field(
        min_length=4,
        max_length=49,
        pattern=CIDR_PATTERN,
        description="The network, as 10.64.0.0/10 or fd00::/8. Host names cannot be given: a NetworkPolicy does not know them.",
    )
    port: int | None = Field(None, ge=1, le=65535, description="The TCP port. Absent: every port and protocol.")


Peers = Annotated[tuple[NetworkPeer, ...], Field(max_length=50)]


class ConditionStatus(BaseModel):
    """A condition as Kubernetes writes it."""

    type: str = Field(max_length=316, description="What it is about.")
    status: Annotated[str, Field(json_schema_extra={"enum": ["True", "False", "Unknown"]})] = Field(
        max_length=7, description="Whether it holds."
    )
    reason: str = Field(max_length=1024, description="The reason in one CamelCase word; part of the API.")
    message: str = Field(max_length=1024, description="What it means and what to do, for people.")
    observed_generation: int | None = Field(
        None, alias="observedGeneration", description="The generation of the spec that it was judged for."
    )
    last_transition_time: str = Field(
        alias="lastTransitionTime",
        max_length=64,
        description="Since when the status is as it is.",
        json_schema_extra={"format": "date-time"},
    )


Conditions = Annotated[
    tuple[ConditionStatus, ...],
    Field(
        max_length=32,
        description="What is true of the object now.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    ),
]


def map_list(*keys: str) -> dict[str, Any]:
    """A list whose entries are told apart by keys: server-side apply merges it, duplicates are refused."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


def set_list() -> dict[str, Any]:
    """A list of distinct scalars."""
    return {"x-kubernetes-list-type": "set"}


ANY_FIELDS: dict[str, Any] = {"x-kubernetes-preserve-unknown-fields": True}

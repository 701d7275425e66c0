"""The part of a pod template that a WorkerPool's user may set: curated, so that the rest stays hardened.

Guarantees: names that the operator sets itself are refused at apply. Fields typed like a Pod's (volumes, envFrom, ...) are passed through
as they are and judged by the API server when the Deployment is applied.
"""

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from poolkeeper.policy_parts import PolicyModel
from poolkeeper_operator.resources.parts import ANY_FIELDS, Model, Quantity, Rule, map_list

RESERVED_ENV = "POOLKEEPER_"
RESERVED_VOLUME = "poolkeeper-"
RESERVED_KEYS = ("poolkeeper.dev/", "app.kubernetes.io/")
RUN_DIRECTORY = "/run/poolkeeper"

_NO_OWN_KEYS = Rule(
    "self.all(key, !key.startsWith('poolkeeper.dev/') && !key.startsWith('app.kubernetes.io/'))",
    "keys under poolkeeper.dev/ and app.kubernetes.io/ are set by the operator; choose another prefix",
    lambda labels: not any(key.startswith(RESERVED_KEYS) for key in labels),
)


class PassThrough(PolicyModel):
    """An object of a Pod's own type."""

    model_config = ConfigDict(extra="allow", json_schema_extra=ANY_FIELDS)

    def as_pod_field(self) -> dict[str, Any]:
        """The object as it goes into the Deployment."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class TemplateMetadata(Model):
    """Labels and annotations of the pods."""

    labels: Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=50), _NO_OWN_KEYS] = Field(
        {}, description="More labels for the pods."
    )
    annotations: Annotated[dict[str, Annotated[str, Field(max_length=4096)]], Field(max_length=50), _NO_OWN_KEYS] = (
        Field({}, description="More annotations for the pods.")
    )


class EnvVar(PassThrough):
    """One environment variable, as in a Pod."""

    name: Annotated[
        str,
        Field(min_length=1, max_length=253),
        Rule(
            "!self.startsWith('POOLKEEPER_')",
            "variables that begin with POOLKEEPER_ are set by the operator; choose another name",
            lambda name: not name.startswith(RESERVED_ENV),
        ),
    ] = Field(description="Its name; POOLKEEPER_* is refused.")
    value: str | None = Field(None, max_length=32_768, description="Its value.")


class Volume(PassThrough):
    """One volume, as in a Pod."""

    name: Annotated[
        str,
        Field(min_length=1, max_length=63, pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"),
        Rule(
            "!self.startsWith('poolkeeper-')",
            "volumes that begin with poolkeeper- are the operator's; choose another name",
            lambda name: not name.startswith(RESERVED_VOLUME),
        ),
    ] = Field(description="Its name; poolkeeper-* is refused.")


class VolumeMount(PassThrough):
    """One volume mount, as in a Pod."""

    name: str = Field(min_length=1, max_length=63, description="Name of the volume.")
    mount_path: Annotated[
        str,
        Field(min_length=1, max_length=1024),
        Rule(
            "!self.startsWith('/run/poolkeeper')",
            "paths below /run/poolkeeper are the operator's; mount elsewhere",
            lambda path: not path.startswith(RUN_DIRECTORY),
        ),
    ] = Field(description="Where it is mounted; not below /run/poolkeeper.")


class EnvFrom(PassThrough):
    """A source of environment variables, as in a Pod."""


class LocalRef(Model):
    """A Secret of the same namespace."""

    name: str = Field(min_length=1, max_length=253, description="Name of the Secret.")


class Resources(Model):
    """Requests and limits of the container."""

    requests: Annotated[dict[str, Quantity], Field(max_length=20)] = Field(
        {},
        description="What a pod is promised. Default: the limit that you set, else cpu 100m and memory 128Mi.",
    )
    limits: Annotated[dict[str, Quantity], Field(max_length=20)] = Field(
        {}, description="What a pod may not exceed. Default: memory 512Mi, unless you request memory and set no limit."
    )


class PodTemplate(Model):
    """What the pods of a pool run."""

    metadata: TemplateMetadata = Field(TemplateMetadata(), description="Labels and annotations of the pods.")
    image: str = Field(
        min_length=1, max_length=1024, description="Image of the worker, with Poolkeeper installed in it."
    )
    image_pull_policy: Annotated[str, Field(pattern="^(Always|IfNotPresent|Never)$", max_length=12)] | None = Field(
        None, description="Always, IfNotPresent or Never. Absent: Kubernetes' own default."
    )
    image_pull_secrets: tuple[LocalRef, ...] = Field(
        (), max_length=10, description="Secrets for pulling the image.", json_schema_extra=map_list("name")
    )
    env: tuple[EnvVar, ...] = Field(
        (), max_length=200, description="Environment variables, as in a Pod.", json_schema_extra=map_list("name")
    )
    env_from: tuple[EnvFrom, ...] = Field((), max_length=20, description="Sources of variables, as in a Pod.")
    volumes: tuple[Volume, ...] = Field(
        (), max_length=50, description="Volumes, as in a Pod.", json_schema_extra=map_list("name")
    )
    volume_mounts: tuple[VolumeMount, ...] = Field(
        (),
        max_length=50,
        description="Volume mounts of the container, as in a Pod.",
        json_schema_extra=map_list("mountPath"),
    )
    resources: Resources = Field(Resources(), description="Requests and limits of the container.")

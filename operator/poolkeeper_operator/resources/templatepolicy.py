"""What tenants may write into template and isolation of their WorkerPools: the platform team's, not theirs, to say (O7). Pure.

Guarantees: the same values of the chart make the ValidatingAdmissionPolicy, which refuses at apply, and this check by the operator,
which sees what was there before the policy or where none is installed; a test compares the two case by case, with their words.
What a template has no field for (host network, privileges, security contexts, commands) nobody may set: the schema has no place for it.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from poolkeeper_operator.resources.parts import Model

ANY = "*"
ROLE_SECRETS = "poolkeeper-role-"
"""How the names of Secrets begin that the operator writes for pools (O5): no template may read another pool's."""

_Entry = Annotated[str, Field(min_length=1, max_length=1024)]
_Entries = Annotated[tuple[_Entry, ...], Field(max_length=200)]
_HOW = "ask who keeps the chart's values policies.templates"


class TemplatePolicy(Model):
    """The chart's values under `policies.templates`; what is absent has the chart's default."""

    exempt_namespaces: _Entries = Field((), description="Namespaces in which nothing of this holds.")
    images: _Entries = Field(
        (), description="Where images may come from: REGISTRY/PATH/ or one whole repository. None: anywhere."
    )
    volumes: _Entries = Field(
        ("configMap", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"),
        description="Kinds of volumes, as a Pod's fields are called.",
    )
    secrets: _Entries = Field(
        (ANY,),
        description="Names of Secrets that env, envFrom and volumes may read; a * at the end stands for the rest.",
    )
    service_accounts: _Entries = Field(
        (), description="Names for isolation.serviceAccountName; * for all. None: each pool has its own."
    )
    service_account_tokens: bool = Field(False, description="Whether projected volumes may bring a token.")
    refused_keys: _Entries = Field(
        ("container.apparmor.security.beta.kubernetes.io/",),
        description="What keys of labels and annotations may not begin with.",
    )
    no_network_policy: bool = Field(True, description="Whether isolation.networkPolicy may be None.")
    egress: bool = Field(True, description="Whether isolation.egress may open more.")
    runtime_classes: _Entries = Field(
        (ANY,), description="Names for isolation.runtimeClassName; a * at the end stands for the rest."
    )
    placement: bool = Field(True, description="Whether isolation.placement may choose nodes, or put up with taints.")

    def refusals(self, pool: Mapping[str, Any], private: Callable[[], Collection[str]] = tuple) -> list[str]:
        """What of a WorkerPool is refused, one sentence each with the remedy; `private`: Secrets of the operator alone, if asked."""
        if pool["metadata"].get("namespace") in self.exempt_namespaces:
            return []
        spec, who = pool["spec"], f'pool "{pool["metadata"]["name"]}"'
        template, isolation = spec["template"], spec.get("isolation") or {}
        found = [
            *self._image(who, template),
            *self._keys(who, template),
            *self._volumes(who, template),
            *self._secrets(who, template),
            *self._isolation(who, isolation),
        ]
        read = set(_secrets(template))
        mine = sorted(read.intersection(private())) if read else ()
        return [*found, *(f'{who}: secret "{name}" is for the operator alone; no pod may read it' for name in mine)]

    def _image(self, who: str, template: Mapping[str, Any]) -> Iterator[str]:
        image = template["image"]
        if self.images and not any(_from(image, place) for place in self.images):
            yield f'{who}: image "{image}" comes from nowhere that is allowed: {", ".join(self.images)}; {_HOW}'

    def _keys(self, who: str, template: Mapping[str, Any]) -> Iterator[str]:
        metadata = template.get("metadata") or {}
        for what in ("labels", "annotations"):
            keys = metadata.get(what) or {}
            if any(key.startswith(self.refused_keys) for key in keys):
                refused = ", ".join(self.refused_keys)
                yield f"{who}: keys of template.metadata.{what} may not begin with {refused}; {_HOW}"

    def _volumes(self, who: str, template: Mapping[str, Any]) -> Iterator[str]:
        volumes = template.get("volumes") or ()
        if any(key != "name" and key not in self.volumes for volume in volumes for key in volume):
            yield f"{who}: template.volumes may be of the kinds {', '.join(self.volumes)}; {_HOW}"
        if not self.service_account_tokens and any("serviceAccountToken" in each for each in _projected(template)):
            yield f"{who}: template.volumes may not bring a token of a service account; {_HOW}"

    def _secrets(self, who: str, template: Mapping[str, Any]) -> Iterator[str]:
        names = list(_secrets(template))
        if any(name.startswith(ROLE_SECRETS) for name in names):
            yield f"{who}: secrets that begin with {ROLE_SECRETS} are the operator's; no template may read one"
        if not all(_named(name, self.secrets) for name in names):
            yield f"{who}: the template may read the secrets {', '.join(self.secrets)}; {_HOW}"

    def _isolation(self, who: str, isolation: Mapping[str, Any]) -> Iterator[str]:
        account = isolation.get("serviceAccountName")
        if account is not None and not _named(account, self.service_accounts):
            allowed = ", ".join(self.service_accounts) or "none: each pool has its own"
            yield f"{who}: isolation.serviceAccountName may be {allowed}; {_HOW}"
        if not self.no_network_policy and isolation.get("networkPolicy") == "None":
            yield f"{who}: isolation.networkPolicy may not be None; {_HOW}"
        if not self.egress and isolation.get("egress"):
            yield f"{who}: isolation.egress may not be set; {_HOW}"
        sandbox = isolation.get("runtimeClassName")
        if sandbox is not None and not _named(sandbox, self.runtime_classes):
            yield f"{who}: isolation.runtimeClassName may be {', '.join(self.runtime_classes) or 'none'}; {_HOW}"
        placement = isolation.get("placement") or {}
        if not self.placement and (placement.get("nodeSelector") or placement.get("tolerations")):
            yield f"{who}: isolation.placement may set neither nodeSelector nor tolerations; {_HOW}"


def _from(image: str, place: str) -> bool:
    """Below a path that ends in /, or the repository itself with any tag or digest; before a further / it would be a host's port."""
    if place.endswith("/"):
        return image.startswith(place)
    return image == place or (image.startswith((f"{place}:", f"{place}@")) and "/" not in image[len(place) :])


def _named(name: str, allowed: Collection[str]) -> bool:
    return any(name == each or (each.endswith(ANY) and name.startswith(each[:-1])) for each in allowed)


def _at(value: object, *path: str) -> Any:
    """What lies there; None where there is nothing, or nothing of that form."""
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _list(value: object) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _projected(template: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for volume in template.get("volumes") or ():
        yield from (each for each in _list(_at(volume, "projected", "sources")) if isinstance(each, Mapping))


def _secrets(template: Mapping[str, Any]) -> Iterator[str]:
    """Names of the Secrets that its container could read."""
    found = [
        *(_at(each, "valueFrom", "secretKeyRef", "name") for each in template.get("env") or ()),
        *(_at(each, "secretRef", "name") for each in template.get("envFrom") or ()),
        *(_at(each, "secret", "secretName") for each in template.get("volumes") or ()),
        *(_at(each, "secret", "name") for each in _projected(template)),
    ]
    return (name for name in found if isinstance(name, str))

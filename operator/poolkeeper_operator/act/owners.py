"""Who owns which field of an object, by `managedFields`. Pure."""

from collections.abc import Mapping
from typing import Any

from poolkeeper_operator.runtime.kinds import MANAGER, SCALER


def managers(manifest: Mapping[str, Any], *path: str) -> list[str]:
    """The field managers that own the field at `path`, such as ("spec", "replicas")."""
    return [entry.get("manager", "") for entry in entries(manifest, *path)]


def entries(manifest: Mapping[str, Any], *path: str) -> list[Mapping[str, Any]]:
    """The entries of `managedFields` that own the field at `path`."""
    found = manifest["metadata"].get("managedFields") or []
    return [entry for entry in found if _owns(entry.get("fieldsV1") or {}, path)]


def foreign_scalers(manifest: Mapping[str, Any]) -> list[str]:
    """Managers other than ours that wrote `spec.replicas`: an HPA, a ScaledObject, a person with `kubectl scale`."""
    return sorted({name for name in managers(manifest, "spec", "replicas") if name not in {MANAGER, SCALER}})


def who_scaled(deployment: Mapping[str, Any]) -> list[str]:
    """Who beside us wrote the replicas of a Deployment; "somebody" where the field was taken from us and is nobody's.

    That is what `kubectl scale --replicas=0` leaves behind: a 0 is left out of the Scale object, so its writer owns nothing.
    """
    if not managers(deployment, "spec", "replicas"):
        return ["somebody"]
    return foreign_scalers(deployment)


def _owns(fields: Mapping[str, Any], path: tuple[str, ...]) -> bool:
    here: Any = fields
    for part in path:
        here = here.get(f"f:{part}") if isinstance(here, Mapping) else None
        if here is None:
            return False
    return True

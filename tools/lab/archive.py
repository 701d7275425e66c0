"""What an image's archive says of itself."""

import json
import tarfile
from pathlib import Path
from typing import Any


def image_id(archive: Path) -> str:
    """The image's id, as the status of a pod's container shows it."""
    return f"sha256:{Path(_manifest(archive)['Config']).name.removesuffix('.json')}"


def image_tag(archive: Path) -> str:
    """The name that it gets where it is imported."""
    return str(_manifest(archive)["RepoTags"][0])


def _manifest(archive: Path) -> dict[str, Any]:
    with tarfile.open(archive) as tar:
        member = tar.extractfile("manifest.json")
        found: dict[str, Any] = json.load(member)[0] if member else {}
    return found

"""Writes a container image of a few files as one OCI archive, without any tool.

Guarantees the same bytes for the same content. For the lab's own `pause`; images of the product come from its Dockerfile.
"""

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
_LAYER = "application/vnd.oci.image.layer.v1.tar"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_INDEX = "application/vnd.oci.image.index.v1+json"


def write(
    archive: Path, reference: str, programs: Mapping[str, Path], entrypoint: str, user: str = "65535:65535"
) -> None:
    """Write an image that holds `programs` (path in the image -> file) and starts `entrypoint`."""
    layer = _tar({path: (source.read_bytes(), 0o755) for path, source in programs.items()})
    blobs: dict[str, bytes] = {}
    described = _blob(blobs, layer, _LAYER)
    config = {
        "created": "1970-01-01T00:00:00Z",
        "architecture": _ARCHITECTURES[os.uname().machine],
        "os": "linux",
        "config": {"Entrypoint": [entrypoint], "User": user},
        "rootfs": {"type": "layers", "diff_ids": [described["digest"]]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": _blob(blobs, _json(config), _CONFIG),
        "layers": [described],
    }
    listed = {
        **_blob(blobs, _json(manifest), _MANIFEST),
        "annotations": {"io.containerd.image.name": reference, "org.opencontainers.image.ref.name": reference},
    }
    index = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": [listed]}
    files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": _json(index)}
    files |= {f"blobs/sha256/{digest}": content for digest, content in blobs.items()}
    archive.write_bytes(_tar({path: (content, 0o644) for path, content in files.items()}))


def _blob(blobs: dict[str, bytes], content: bytes, media_type: str) -> dict[str, str | int]:
    digest = hashlib.sha256(content).hexdigest()
    blobs[digest] = content
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}


def _tar(files: Mapping[str, tuple[bytes, int]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, (content, mode) in files.items():
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.size, entry.mode = len(content), mode
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()

"""Q27: the memory bound of a suspect's process, from the container's files."""

from pathlib import Path

import pytest

from poolkeeper.worker.isolated import LEAST, RESERVE, memory_bound

GIB = 1 << 30


@pytest.mark.parametrize(
    ("files", "own", "bounded"),
    [
        ({"memory.max": f"{GIB}\n"}, "0::/\n", True),
        ({"memory.max": "max\n"}, "0::/\n", False),
        ({"pods/a/memory.max": f"{GIB}\n"}, "0::/pods/a\n", True),
        ({"memory/memory.limit_in_bytes": f"{GIB}\n"}, "5:memory:/\n", True),
        ({"memory/docker/x/memory.limit_in_bytes": f"{GIB}\n"}, "5:cpu,memory:/docker/x\n", True),
        ({"memory/memory.limit_in_bytes": "9223372036854771712\n"}, "5:memory:/\n", False),
        ({}, "", False),
    ],
)
def test_the_containers_limit_is_found_in_both_versions_of_cgroups(
    tmp_path: Path, files: dict[str, str], own: str, bounded: bool
) -> None:
    """Q27: below the container's, or none where there is none."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "own").write_text(own)
    bound = memory_bound(tmp_path, tmp_path / "own")
    assert (bound is not None) == bounded
    if bound is not None:
        assert LEAST <= bound <= GIB - RESERVE


def test_a_tiny_container_still_leaves_enough_to_say_what_is_wrong(tmp_path: Path) -> None:
    """Q27: an interpreter needs some."""
    (tmp_path / "memory.max").write_text("1000000")
    assert memory_bound(tmp_path, tmp_path / "own") == LEAST

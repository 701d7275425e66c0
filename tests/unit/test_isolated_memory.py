"""Q27: the memory bound of a suspect's process, from the container's files."""

import resource
from pathlib import Path

import pytest

from poolkeeper.worker.isolated import FILES, FILES_KEPT, LEAST, RESERVE, SHARE, Rooms, memory_bound, rooms

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


@pytest.mark.parametrize(
    ("limit", "slots"), [(GIB // 4, 10), (GIB, 10), (8 * GIB, 10), (8 * GIB, 250), (64 * GIB, 250)]
)
def test_the_shares_of_suspects_side_by_side_fit_into_the_container_together(
    tmp_path: Path, limit: int, slots: int
) -> None:
    """Q27, C10: at most one per slot, none with less than its share, all of them below the limit."""
    (tmp_path / "memory.max").write_text(str(limit))
    made = rooms(slots, tmp_path, tmp_path / "own")
    assert 1 <= made.most <= slots
    assert made.whole is not None
    for beside in range(1, made.most + 1):
        share = made.share(beside)
        assert share is not None
        assert beside * share <= made.whole <= limit - RESERVE
        assert share >= SHARE or made.most == 1
    assert made.most == slots or (made.most + 2) * SHARE > limit - GIB // 4
    assert made.share(1) == made.whole


def test_without_a_limit_slots_and_open_files_bound_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C10: each child costs some files; running out of them would look like the fault of the task."""
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert rooms(250, tmp_path, tmp_path / "own") == Rooms(250, None, None)
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (FILES_KEPT + 30 * FILES, 4096))
    assert rooms(250, tmp_path, tmp_path / "own") == Rooms(30, None, None)
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (64, 64))
    assert rooms(250, tmp_path, tmp_path / "own") == Rooms(1, None, None)

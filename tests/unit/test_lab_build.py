"""Building the tools with whatever Go there is, or saying what to install."""

from pathlib import Path

import pytest

from lab import build, cache, golang
from lab.errors import LabError
from lab.progress import Meter, span


@pytest.mark.parametrize(
    ("text", "version"),
    [("go1.26.8", (1, 26, 8)), ("1.24", (1, 24, 0)), ("go version go1.19.8 linux/amd64", (1, 19, 8)), ("devel", None)],
)
def test_versions_of_go_are_read(text: str, version: golang.Version | None) -> None:
    assert golang.parse(text) == version


@pytest.mark.parametrize("module", build.MODULES, ids=lambda module: module.name)
def test_every_module_says_which_go_it_needs(module: build.Module) -> None:
    assert golang.required(module.folder) >= (1, 24, 0)


@pytest.mark.parametrize("module", build.MODULES, ids=lambda module: module.name)
def test_the_version_that_a_program_says_is_the_one_of_its_pin(module: build.Module) -> None:
    pinned = (module.folder / "go.mod").read_text()
    told = next(part.split("=")[1] for part in module.ldflags.split() if part.lower().split("=")[0].endswith("version"))
    assert f" {told}\n" in pinned


def test_a_go_that_is_too_old_is_not_used_and_the_error_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = go_that(tmp_path, "echo go1.19.8")
    monkeypatch.setattr(golang, "_candidates", lambda: [old, tmp_path / "none"])
    monkeypatch.setenv("POOLKEEPER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    said: list[str] = []
    with pytest.raises(LabError, match=r"no Go 1\.24\.0 or newer.*install Go"):
        golang.find((1, 24, 0), said.append)
    assert said[0] == f"{old} is Go 1.19.8, too old (1.24.0 is needed)"
    assert [found for found in (tmp_path / "cache").rglob("*") if found.is_file()] == []


def test_a_go_that_does_not_build_them_is_named_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = golang.Go(go_that(tmp_path, "echo internal compiler error; exit 1"), (1, 99, 0))
    monkeypatch.setenv("POOLKEEPER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(golang, "find", lambda *_: broken)
    with pytest.raises(
        LabError, match=r"(?s)Go 1\.99\.0 .* does not build .*install Go 1\.24.*internal compiler error"
    ):
        build.ensure([build.KUBERNETES], lambda _: None)
    assert not build.KUBERNETES.built().exists()


def test_no_build_starts_on_a_disk_that_is_too_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POOLKEEPER_CACHE", str(tmp_path))
    monkeypatch.delenv("GOCACHE", raising=False)
    monkeypatch.setattr(build, "_COLD_BYTES", 1 << 62)
    with pytest.raises(LabError, match="GiB are free"):
        build.ensure([build.KUBERNETES], lambda _: None)
    assert list(cache.folder().iterdir()) == []  # not even begun


def test_progress_names_what_to_expect_before_it_can_measure_it() -> None:
    meter = Meter("building x", total=1000, expected=530)
    assert (
        meter.sentence(0) == "building x: 0 of 1000 packages, 0 s spent, about 8:50 min in all when nothing is cached"
    )
    meter.step(500)
    assert meter.sentence(200) == "building x: 500 of 1000 packages, 3:20 min spent, about 3:20 min to go"


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (59.9, "59 s"), (61, "1:01 min")])
def test_spans_are_for_people(seconds: float, text: str) -> None:
    assert span(seconds) == text


def go_that(folder: Path, script: str) -> Path:
    program = folder / "go"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return program

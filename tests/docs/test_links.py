"""What a page points at is there: links, headings and files (A12)."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)
TOP = {path.name for path in ROOT.iterdir() if path.name != ".venv" and not path.name.endswith("_cache")}
CODE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"[\w.-]+(/[\w.{},*-]+)+/?")


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text())


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    plain = re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower())
    return plain.replace(" ", "-")


def anchors(page: Path) -> set[str]:
    return {slug(heading) for heading in HEADING.findall(prose(page))}


def paths_in(page: Path) -> list[str]:
    """What looks like a file of this repository: in backticks, and its first part is something at the root."""
    found = [text for text in CODE.findall(prose(page)) if PATH.fullmatch(text)]
    return [text for text in found if text.split("/")[0] in TOP]


def exists(path: str) -> bool:
    return bool(list(ROOT.glob(path.rstrip("/")))) if "*" in path else (ROOT / path).exists()


def test_there_are_pages_with_paths_in_them() -> None:
    """So that the tests below cannot pass by finding nothing."""
    assert len(paths_in(ROOT / "docs" / "architecture.md")) > 30


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    assert [path for path in paths_in(page) if not exists(path)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_within_the_repository_leads_somewhere(page: Path) -> None:
    broken = []
    for target in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []

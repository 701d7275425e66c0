"""The base image comes from where apt gets its packages here, in each of apt's notations."""

from pathlib import Path

import pytest

from lab.base_image import Mirror, mirror
from lab.errors import LabError

STANZAS = """\
# a comment: with a colon
Types: deb
URIs: http://deb.example.test/d
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/archive.gpg

Types: deb-src
URIs: http://sources.example.test/d
Suites: trixie

Enabled: no
Types: deb
URIs: http://off.example.test/d
Suites: trixie

Types: deb
URIs: http://second.example.test/d
Suites: trixie
Trusted: yes
"""
LINES = """\
# deb http://commented.example.test/d noble main
deb-src http://sources.example.test/d noble main
deb [arch=amd64 signed-by=/keys/a.gpg] http://deb.example.test/u noble main universe
deb http://deb.example.test/u noble-updates main
"""


@pytest.mark.parametrize(
    ("suite", "found"),
    [
        ("bookworm", Mirror("http://deb.example.test/d", "bookworm", "/usr/share/keyrings/archive.gpg")),
        ("trixie", Mirror("http://second.example.test/d", "trixie", trusted=True)),
        ("noble", Mirror("http://deb.example.test/u", "noble", "/keys/a.gpg")),
    ],
)
def test_the_mirror_of_a_release_is_found(tmp_path: Path, suite: str, found: Mirror) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d" / "main.sources").write_text(STANZAS)
    (tmp_path / "sources.list.d" / "ignored.save").write_text("deb http://saved.example.test/u noble main\n")
    (tmp_path / "sources.list").write_text(LINES)
    assert mirror(suite, tmp_path) == found


def test_a_release_without_a_mirror_is_named(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"no entry for sid in .*sources\.list"):
        mirror("sid", tmp_path)

"""Every command and example in README and docs is run, or is said to be run by a file that does (A12)."""

import re
from pathlib import Path

import pytest
import yaml

from fixtures.console import ON_A_CLUSTER, ROOT, Block, Shell, blocks, free_port, shell, shows
from fixtures.postgres import Database
from poolkeeper_operator.resources.kinds import KINDS, read_spec

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
WITH_COMMANDS = [page for page in PAGES if any(block.language in {"console", "python"} for block in blocks(page))]
WITH_SQL = [
    page for page in PAGES if page.parent.name != "reference" and any(block.language == "sql" for block in blocks(page))
]
SHELL_LANGUAGES = {"sh", "bash", "shell", "shell-session"}


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", [page for page in WITH_COMMANDS if page not in ON_A_CLUSTER], ids=named)
def test_a_page_can_be_followed_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    """Literally, but for the ports, on a Postgres that the page itself starts."""
    environment = {"POOLKEEPER_HTTP_ADDR": "127.0.0.1:0", "POOLKEEPER_LOG_FORMAT": "text", "TZ": "UTC"}
    with shell(tmp_path, {"54320": free_port()}, environment) as made:
        for block in blocks(page):
            made.run(block)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_what_a_page_does_not_run_is_run_by_the_file_that_it_names(page: Path) -> None:
    for block in blocks(page):
        if block.word == "elsewhere":
            text = "\n".join((ROOT / file.strip()).read_text() for file in block.what.split(","))
            missing = [command for command, _ in block.commands() if not mentioned(command, text)]
            assert missing == [], f"{block.what} does not run them"
            assert block.language != "python" or block.text in text, f"{block.what} has another text"


def mentioned(command: str, text: str) -> bool:
    """Whether a file runs a command: its words stand there, in order, however they are quoted."""
    words = re.findall(r"[\w./:=-]+", command)
    pattern = r"[\s\"',\[\]@$()]+".join(re.escape(word) for word in words)
    return re.search(pattern, text) is not None


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_a_file_that_a_page_shows_is_that_file(page: Path) -> None:
    shown = [block for block in blocks(page) if block.word == "file" and (ROOT / block.what).exists()]
    assert [block.what for block in shown if (ROOT / block.what).read_text() != block.text] == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_a_resource_that_a_page_shows_is_valid(page: Path) -> None:
    for block in blocks(page):
        if block.language == "yaml":
            for document in yaml.safe_load_all(block.text):
                for kind in KINDS:
                    if document.get("kind") == kind.name:
                        read_spec(kind.spec, document)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_stand_in_blocks_that_are_run(page: Path) -> None:
    """A block of another language would look the same to a reader and never be run."""
    assert [block.language for block in blocks(page) if block.language in SHELL_LANGUAGES] == []


@pytest.mark.parametrize("page", WITH_SQL, ids=named)
def test_sql_that_a_page_shows_is_understood_by_the_server(page: Path, database: Database) -> None:
    """In a transaction that is rolled back."""
    for block in blocks(page):
        if block.language == "sql":
            with database.connect() as conn, conn.transaction(force_rollback=True):
                conn.execute(block.text.encode())


def test_an_output_that_differs_is_seen(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="wanted"), shell(tmp_path, {}, {}) as made:
        made.run(Block("console", "$ echo one\ntwo\n"))


def test_an_exit_code_that_differs_is_seen(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="exit code 1"), shell(tmp_path, {}, {}) as made:
        made.run(Block("console", "$ false\n"))


def test_an_exit_code_that_is_announced_is_right(tmp_path: Path) -> None:
    with shell(tmp_path, {}, {}) as made:
        made.run(Block("console", "$ (exit 4)  # exit code 4\n"))


def test_a_program_in_the_background_that_fails_is_seen(tmp_path: Path) -> None:
    made: Shell
    with pytest.raises(AssertionError), shell(tmp_path, {}, {}) as made:
        made.run(
            Block("console", "$ sh -c 'trap \"exit 3\" TERM; echo up; while :; do sleep 0.1; done'\nup\n", "background")
        )


def test_outputs_are_compared_without_counting_spaces() -> None:
    assert shows("A  B\n... c\n", "A B\nmany words c\n")
    assert not shows("A  B\n", "A C\n")

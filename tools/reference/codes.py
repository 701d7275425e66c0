"""docs/reference/codes.md: codes, classes, exit codes and reasons, from `poolkeeper.codes` and the look-up tables."""

from poolkeeper.codes import ALREADY_DONE, Code, Reason
from poolkeeper.errors import CLASSES, PoolkeeperError
from reference import sqltext
from reference.markdown import code, table


def page() -> str:
    """The page."""
    sentences = {name: sentence for name, _, sentence in sqltext.rows("code")}
    reasons = {name: (sentence, action) for name, sentence, action in sqltext.rows("reason")}
    classes = dict.fromkeys(CLASSES.values())
    return "\n".join(
        [
            "# Codes, exit codes and reasons\n",
            "One list for SQL, Python and the command line. A code never changes its meaning.\n",
            "## Codes\n",
            "Why something was refused or impossible. Python raises the class (all under `poolkeeper.PoolkeeperError`) with the code in",
            "`.code`; SQL answers a row with it; the command line prints it and exits with the class's exit code.\n",
            table(
                ("code", "class", "exit code", "meaning"),
                ((code(str(c)), _class(c).__name__, str(_class(c).exit_code), sentences.get(str(c), "")) for c in Code),
            ),
            f"\n`{ALREADY_DONE}` is an answer and no error: the same settle was repeated after its answer was lost.\n",
            "## Exit codes\n",
            table(
                ("exit code", "meaning"),
                [
                    ("0", "well"),
                    ("1", "the work failed"),
                    *_exit_rows(classes),
                    ("130", "interrupted"),
                ],
            ),
            "\n## Reasons\n",
            "Why a delivery or a task ended as it did: in the history, on dead letters, in Events.\n",
            table(
                ("reason", "meaning", "what to do"),
                ((code(str(r)), *reasons.get(str(r), ("", ""))) for r in Reason),
            ),
        ]
    )


def _class(one: Code) -> type[PoolkeeperError]:
    return CLASSES[one]


def _exit_rows(classes: dict[type[PoolkeeperError], None]) -> list[tuple[str, str]]:
    by_code: dict[int, list[str]] = {}
    for each in classes:
        by_code.setdefault(each.exit_code, []).append(each.__name__)
    usage = {2: " (wrong usage too)"}
    return [(str(number), ", ".join(by_code[number]) + usage.get(number, "")) for number in sorted(by_code)]

"""SQL and PL/pgSQL text as tokens with their places. Pure; knows comments, literals, names, words and nesting, not grammar."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*.*?\*/)
      | (?P<text>[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*')
      | (?P<word>"[^"]+"|[A-Za-z_][A-Za-z0-9_]*)
      | (?P<number>\d[\d.]*)
      | (?P<mark>\$\$|::|:=|\|\||->>|->|<=|>=|<>|!=|!~\*?|~\*?|.)""",
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True)
class Token:
    """A token: its kind (word, name after a dot, text, number, mark), its text (words in capitals), and where it stands."""

    kind: str
    text: str
    start: int
    end: int
    depth: int
    """How many brackets and CASEs it stands in; an opening bracket counts as outside of its own."""


def tokens(source: str) -> list[Token]:
    """The tokens of a file, without space and comments."""
    found: list[Token] = []
    open_: list[str] = []
    for match in _TOKEN.finditer(source):
        kind = match.lastgroup or ""
        if kind == "space":
            continue
        text = match[0].upper() if kind == "word" else match[0]
        closes = text in {")", "]"} or (text == "END" and bool(open_) and open_[-1] == "CASE")
        if closes and open_:
            open_.pop()
        if kind == "word" and found and found[-1].text == "." and found[-1].end == match.start():
            kind = "name"  # of a column, whatever it is called
        found.append(Token(kind, text, match.start(), match.end(), len(open_)))
        if text in {"(", "["} or (kind == "word" and text == "CASE" and not _ends_a_statement(found)):
            open_.append(text)
    return found


def _ends_a_statement(found: Sequence[Token]) -> bool:
    """Whether the last token belongs to PL/pgSQL's END CASE."""
    return len(found) > 1 and found[-2].text == "END"


def is_sequence(found: Sequence[Token], at: int, *words: str) -> bool:
    """Whether these words stand at a place."""
    return tuple(token.text for token in found[at : at + len(words)]) == words

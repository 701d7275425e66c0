"""Finds the guards in the store's SQL: what is there so that something wrong does not happen. Pure.

A guard is a conjunct of WHERE, ON or HAVING or of what a function in plain SQL answers with yes or no, a row lock (and its SKIP LOCKED), a branch that
refuses or goes elsewhere (RAISE, RETURN, EXIT or CONTINUE in an IF or by WHEN, a demand, a CASE arm that gives a code), ON CONFLICT DO NOTHING, a
CHECK, a UNIQUE or a foreign key. Taking it out leaves text that Postgres still accepts, as a rule. Guards of indexes and grants are not looked
at: they are no rule of an arrow.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from mutate.tokens import Token, is_sequence, tokens

ENDS = frozenset(
    {
        "GROUP",
        "ORDER",
        "LIMIT",
        "FOR",
        "RETURNING",
        "UNION",
        "HAVING",
        "WINDOW",
        "OFFSET",
        "FETCH",
        "LOOP",
        "THEN",
        "WHERE",
    }
    | {"JOIN", "LEFT", "RIGHT", "INNER", "FULL", "CROSS", "INTO", "ON", "SET", "DO"}
)
"""Words after which a condition is over."""
STARTS_STATEMENT = frozenset({";", "BEGIN", "THEN", "ELSE", "LOOP", "$$"})
ENDS_BRANCH = frozenset({"RAISE", "RETURN", "EXIT", "CONTINUE"})
DEMAND = re.compile(r"DEMAND\w*|CALLER")
"""Functions that refuse by themselves."""
LOCKS = (("FOR", "NO", "KEY", "UPDATE"), ("FOR", "KEY", "SHARE"), ("FOR", "UPDATE"), ("FOR", "SHARE"))
FUNCTION = re.compile(r"^CREATE OR REPLACE (?:FUNCTION|VIEW) poolkeeper\.(\w+)", re.MULTILINE)
TABLE = re.compile(r"^(?:CREATE TABLE|ALTER TABLE|CREATE UNIQUE INDEX \w+ ON) poolkeeper\.(\w+)", re.MULTILINE)


@dataclass(frozen=True)
class Guard:
    """One guard: where it is, what it is, and the text that stands there without it."""

    file: str
    inside: str
    """The function or table."""
    kind: str
    text: str
    start: int
    end: int
    instead: str
    number: int = 1
    """Which of those that read the same in one function."""
    answer: str = ""
    """What follows where it holds: a code, a refusal's words. Tests speak of these rather than of the condition."""

    @property
    def name(self) -> str:
        """The same from one day to the next, while its text stays."""
        many = f" #{self.number}" if self.number > 1 else ""
        return f"{self.inside}: {self.kind}: {self.text}{many}"

    def without(self, source: str) -> str:
        """The file without it."""
        return source[: self.start] + self.instead + source[self.end :]


def guards(file: str, source: str) -> list[Guard]:
    """All guards of a file, in order."""
    found = tokens(source)
    seen: Counter[tuple[str, str, str]] = Counter()
    numbered = []
    for guard in sorted(_all(source, found), key=lambda g: (g.start, g.end)):
        inside = _inside(source, guard.start)
        if not inside:  # a block that runs once
            continue
        seen[inside, guard.kind, guard.text] += 1
        numbered.append(replace(guard, file=file, inside=inside, number=seen[inside, guard.kind, guard.text]))
    return numbered


def _all(source: str, found: Sequence[Token]) -> Iterator[Guard]:
    for at, token in enumerate(found):
        if token.kind == "word" and token.text in _FINDERS:
            yield from _FINDERS[token.text](source, found, at)


def _guard(source: str, kind: str, first: Token, last: Token, instead: str) -> Guard:
    text = " ".join(re.sub(r"--[^\n]*", "", source[first.start : last.end]).split())
    return Guard("", "", kind, text, first.start, last.end, instead)


def _condition(source: str, found: Sequence[Token], at: int) -> Iterator[Guard]:
    """Of WHERE or HAVING."""
    if not _of_an_index(found, at):
        yield from _conjuncts(source, found, at, found[at].text)


def _on(source: str, found: Sequence[Token], at: int) -> Iterator[Guard]:
    """Of a join; or ON CONFLICT DO NOTHING: what is there already is no error, and stays as it is."""
    if _joins(found, at):
        yield from _conjuncts(source, found, at, "ON")
    elif found[at + 1].text == "CONFLICT":
        last = next(k for k in range(at, len(found)) if found[k].text == "DO" and found[k].depth == found[at].depth) + 1
        if found[last].text == "NOTHING":
            yield _guard(source, "conflict", found[at], found[last], "")


def _conjuncts(source: str, found: Sequence[Token], at: int, kind: str) -> Iterator[Guard]:
    """What stands between AND and AND; one with an OR beside it is one guard as a whole."""
    depth, end = found[at].depth, at + 1
    while end < len(found) and not _over(found, end, depth):
        end += 1
    parts, begin, between = [], at + 1, False
    if any(token.text == "OR" and token.depth == depth for token in found[at + 1 : end]):
        parts.append((at + 1, end))
    else:
        for k in range(at + 1, end):
            token = found[k]
            if token.depth != depth:
                continue
            if token.text == "BETWEEN":
                between = True
            elif token.text == "AND" and between:
                between = False
            elif token.text == "AND":
                parts.append((begin, k))
                begin = k + 1
        parts.append((begin, end))
    for first, after in parts:
        if after > first:
            yield _guard(source, kind, found[first], found[after - 1], "true")


def _over(found: Sequence[Token], k: int, depth: int) -> bool:
    token = found[k]
    if token.depth < depth or token.text in {";", "$$"}:
        return True
    ends = token.text in ENDS or (token.text == "FROM" and found[k - 1].text != "DISTINCT")
    return token.depth == depth and (token.text == "," or (token.kind == "word" and ends))


def _of_an_index(found: Sequence[Token], at: int) -> bool:
    """Whether a WHERE belongs to CREATE INDEX or to FILTER, which is a figure's."""
    if at >= 2 and found[at - 1].text == "(" and found[at - 2].text == "FILTER":
        return True
    for k in range(at, -1, -1):
        if found[k].text in {";", "$$"}:
            return False
        if found[k].text == "INDEX":
            return True
    return False


def _joins(found: Sequence[Token], at: int) -> bool:
    """Whether an ON is a join's: not of ON CONFLICT, ON DELETE, an index, a grant or a type."""
    if found[at + 1].text in {"CONFLICT", "DELETE", "UPDATE", "COMMIT", "TRUE"}:
        return False
    for k in range(at - 1, max(-1, at - 60), -1):
        if found[k].text in {";", "$$"}:
            return False
        if found[k].text == "JOIN" and found[k].depth == found[at].depth:
            return True
    return False


def _locks(source: str, found: Sequence[Token], at: int) -> Iterator[Guard]:
    lock = next((words for words in LOCKS if is_sequence(found, at, *words)), None)
    if lock is None:
        return
    last = at + len(lock) - 1
    if is_sequence(found, last + 1, "OF"):
        last += 2
    skips = is_sequence(found, last + 1, "SKIP", "LOCKED")
    if skips:
        yield _guard(source, "skip locked", found[last + 1], found[last + 2], "")
    yield _guard(source, "lock", found[at], found[last + 2 if skips else last], "")


def _branch(source: str, found: Sequence[Token], at: int) -> Iterator[Guard]:
    """An IF whose branch ends the function or the loop: a refusal, or a case that is dealt with apart."""
    if found[at].text == "IF" and found[at - 1].text not in STARTS_STATEMENT:
        return
    then = next(
        (k for k in range(at, len(found)) if found[k].text == "THEN" and found[k].depth == found[at].depth), None
    )
    if then is None:
        return
    nested = 0
    for k in range(then + 1, len(found)):
        text = found[k].text
        if text == "IF" and found[k - 1].text in STARTS_STATEMENT:
            nested += 1
        elif text == "END" and is_sequence(found, k + 1, "IF"):
            if nested == 0:
                return
            nested -= 1
        elif nested == 0 and text in {"ELSE", "ELSIF"} and found[k].depth == found[at].depth:
            return
        elif (
            nested == 0
            and text in ENDS_BRANCH
            and found[k - 1].text in STARTS_STATEMENT
            and found[k + 1].text != "WHEN"
        ):
            said = source[found[then].end : found[k].end + 150]
            yield replace(_guard(source, "refusal", found[at + 1], found[then - 1], "false"), answer=said)
            return


def _when(source: str, found: Sequence[Token], at: int) -> Iterator[Guard]:
    """When a loop, or this turn of it, is over; or an arm of a CASE."""
    if found[at - 1].text not in {"EXIT", "CONTINUE"}:
        yield from _arm(source, found, at)
        return
    end = next(k for k in range(at, len(found)) if found[k].text == ";")
    yield _guard(source, "jump", found[at + 1], found[end - 1], "false")


def _demand(source: str, found: Sequence[Token], at: int) -> Iterator[Guard]:
    """A call whose answer nobody wants: it refuses, or says nothing."""
    if is_sequence(found, at + 1, "POOLKEEPER", ".") and DEMAND.fullmatch(found[at + 3].text):
        end = next(k for k in range(at, len(found)) if found[k].text == ";" and found[k].depth == found[at].depth)
        yield _guard(source, "demand", found[at], found[end - 1], "NULL")


def _answer(source: str, found: Sequence[Token], at: int) -> Iterator[Guard]:
    """What a function that is one SELECT says yes to; of several conditions each is one."""
    if not is_sequence(found, at + 1, "BOOLEAN", "LANGUAGE", "SQL"):
        return
    select = next(k for k in range(at, len(found)) if found[k].text == "$$") + 1
    if found[select].text == "SELECT":
        parts = list(_conjuncts(source, found, select, "answer"))
        if len(parts) > 1:
            yield from parts


def _arm(source: str, found: Sequence[Token], at: int) -> Iterator[Guard]:
    """A CASE arm that answers with a code."""
    depth = found[at].depth
    then = next((k for k in range(at, len(found)) if found[k].text == "THEN" and found[k].depth == depth), None)
    if then is None or found[at - 1].text == "EXCEPTION":
        return
    answer = found[then + 1]
    if answer.kind == "text" and re.fullmatch(r"'[a-z]+_[a-z_]+'", answer.text) and _searched(found, at):
        yield replace(_guard(source, "arm", found[at + 1], found[then - 1], "false"), answer=answer.text)


def _searched(found: Sequence[Token], at: int) -> bool:
    """Whether the CASE has conditions, not values."""
    depth = found[at].depth
    for k in range(at - 1, -1, -1):
        if found[k].text == "CASE" and found[k].depth == depth - 1:
            return found[k + 1].text == "WHEN"
    return False


def _constraint(source: str, found: Sequence[Token], at: int) -> Iterator[Guard]:
    text = found[at].text
    if text == "REFERENCES":
        yield _guard(source, "foreign key", found[at], found[at + 3], "")
    elif text == "CHECK" and found[at + 1].text == "(":
        close = next(
            k for k in range(at + 2, len(found)) if found[k].text == ")" and found[k].depth == found[at + 1].depth
        )
        yield _guard(source, "check", found[at + 2], found[close - 1], "true")
    elif text == "UNIQUE" and found[at + 1].text == "INDEX":
        yield _guard(source, "unique", found[at], found[at], "")
    elif text in {"UNIQUE", "PRIMARY"}:
        last = at if text == "UNIQUE" else at + 1
        if found[last + 1].text != "(":
            yield _guard(source, "unique", found[at], found[last], "")
            return
        depth = found[last + 1].depth
        close = next(k for k in range(last + 2, len(found)) if found[k].text == ")" and found[k].depth == depth)
        yield _guard(source, "unique", found[at], found[close], "CHECK (true)")


_FINDERS: dict[str, Callable[[str, Sequence[Token], int], Iterator[Guard]]] = {
    **dict.fromkeys(("WHERE", "HAVING"), _condition),
    "ON": _on,
    "FOR": _locks,
    **dict.fromkeys(("IF", "ELSIF"), _branch),
    "WHEN": _when,
    "PERFORM": _demand,
    "RETURNS": _answer,
    **dict.fromkeys(("CHECK", "UNIQUE", "REFERENCES", "PRIMARY"), _constraint),
}
"""By the word that a guard begins with."""


def _inside(source: str, place: int) -> str:
    """The function, view or table around a place."""
    last = ""
    for match in sorted(
        [*FUNCTION.finditer(source, 0, place), *TABLE.finditer(source, 0, place)], key=lambda m: m.start()
    ):
        last = match[1]
    return last

"""Documents and XPath queries are drawn, and each verdict is compared with lxml's: alone, among few, and among many.

A round depends on its seed and number only. In each, every query that is taken is asked of every document in all the
ways in which a node may come to answer it: by itself, in a set of few, in a set of all, and (a pattern) by an automaton
of its own. Each of these is one verdict. What else is promised of queries is looked at on the way: the canonical text
is its own and means the same, a query that covers another has all its documents, and what lxml takes is not called
invalid.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from lxml import etree

from protocols.dissemination.interests.errors import InterestError
from protocols.dissemination.interests.xpath.automaton import Automaton
from protocols.dissemination.interests.xpath.document import namespaces_of, parse
from protocols.dissemination.interests.xpath.kind import FEW, XPathKind
from protocols.dissemination.ports import Interest

KIND = XPathKind()
QUERIES = 48
"""Drawn a round; together they are too many for lxml alone."""
DOCUMENTS = 12
PAIRS = 40
"""Pairs of queries a round of which it is looked whether one covers the other."""
LONG_SHARE = 0.06
SHOWN_MAX = 10
FINDINGS_MAX = 1000
NAMESPACES = {"p": "urn:one", "q": "urn:two", "r": "urn:one"}
NAMES = ["a", "a", "b", "b", "c", "p:a", "q:b"]
TESTS = ["a", "a", "b", "b", "c", "d", "*", "*", "p:a", "q:*", "o:a", "r:a"]
ATTRIBUTES = ["x", "x", "y", "p:x", "xml:lang"]
TEXTS = ["", "1", "2", "-1.5", "t", " 3 ", "0.1", "1e2", "t'u", "\u00e9", "12"]
CONSTANTS = ["1", "2", "-1.5", "0", "'t'", "'2'", '""', "'1'", '"t\'u"', ".1", "12.", "'\u00e9'", "0.10"]


@dataclass
class Outcome:
    """What came of some rounds."""

    verdicts: int = 0
    met: int = 0
    queries: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """By the first words of the reason."""
    findings: list[str] = field(default_factory=list)


# Documents


def draw_document(rng: Random) -> str:
    """One with a few dozen nodes, in some of the shapes that queries tell apart."""
    declared = "".join(f' xmlns:{prefix}="{name}"' for prefix, name in NAMESPACES.items())
    if rng.random() < 0.2:  # the prefixes mean something else here, or less
        declared = ' xmlns:p="urn:two" xmlns:q="urn:one" xmlns:r="urn:three"'
    begin = rng.choice(["", "", "", "<?xml version='1.0'?>", "<!-- c -->", "<?t x?>"])
    default = ' xmlns="urn:one"' if rng.random() < 0.05 else ""
    return begin + _element(rng, rng.randint(1, 5), declared + default)


def _element(rng: Random, depth: int, declared: str = "") -> str:
    name = rng.choice(NAMES)
    chosen = {rng.choice(ATTRIBUTES): rng.choice(TEXTS) for _ in range(rng.choice([0, 0, 1, 2]))}
    attributes = "".join(f' {each}="{text}"' for each, text in chosen.items())
    if depth == 0 or rng.random() < 0.15:
        return f"<{name}{declared}{attributes}>{rng.choice(TEXTS)}</{name}>"
    inside = "".join(_element(rng, depth - 1) + _between(rng) for _ in range(rng.randint(1, 3)))
    return f"<{name}{declared}{attributes}>{_between(rng)}{inside}</{name}>"


def _between(rng: Random) -> str:
    return rng.choice(["", "", "", "2", "t", "<!-- 1 -->", "1<!-- x -->2", "<?t 1?>", "<![CDATA[1]]>"])


# Queries


def draw_query(rng: Random) -> str:
    """A query as subscribers write them, or as nobody would."""
    kind = rng.random()
    if kind < LONG_SHARE:
        return _long(rng)
    if kind < 0.14:
        return " | ".join(_path(rng, rng.randint(0, 2)) for _ in range(rng.randint(2, 4)))
    if kind < 0.20:
        return rng.choice([" and ", " or "]).join(_truth(rng) for _ in range(rng.randint(2, 3)))
    if kind < 0.25:
        return _truth(rng)
    if kind < 0.27:
        return f"{rng.choice(CONSTANTS)} {_op(rng)} {rng.choice(CONSTANTS)} {_op(rng)} {rng.choice(CONSTANTS)}"
    if kind < 0.30:
        return f"({_path(rng, 1)})[{_predicate(rng, 1)}]" + rng.choice(["", _step(rng, 1)])
    return _path(rng, 2)


def _long(rng: Random) -> str:
    count = rng.randint(5, 30)
    kind = rng.random()
    if kind < 0.3:
        return f"//*[{rng.choice([' or ', ' and ']).join(_predicate(rng, 1) for _ in range(count // 2))}]"
    if kind < 0.6:
        return " | ".join(_path(rng, 1) for _ in range(count // 2))
    if kind < 0.8:
        return "".join(_step(rng, 0) for _ in range(count))
    return "/*" + "".join(f"[{_predicate(rng, 2)}]" for _ in range(count // 3))


def _truth(rng: Random) -> str:
    kind = rng.random()
    if kind < 0.2:
        return f"not({_path(rng, 1)})"
    if kind < 0.5:
        return f"count({_path(rng, 1)}) {_op(rng)} {rng.randint(0, 3)}"
    if kind < 0.8:
        return f"{_path(rng, 1)} {_op(rng)} {rng.choice(CONSTANTS)}"
    return f"({_path(rng, 1)})"


def _path(rng: Random, depth: int) -> str:
    if rng.random() < 0.03:
        return rng.choice(
            ["/.", "/", "//.", "/.//node()", "/./a", "//node()", "/self::node()", "//comment()", "//text()"]
        )
    text = "".join(_step(rng, depth) for _ in range(rng.choice([1, 1, 2, 2, 3])))
    return text + rng.choice([""] * 12 + ["/@x", "//@y", "/text()", "//@*", "/.", "/node()", "//.", "/@q:*"])


def _step(rng: Random, depth: int) -> str:
    axis = rng.choice([""] * 16 + ["child::", "descendant::", "descendant-or-self::", "self::", "./", ".//"])
    test = rng.choice(TESTS) if rng.random() < 0.96 else rng.choice(["node()", "text()", "processing-instruction()"])
    return rng.choice(["/", "/", "//"]) + axis + test + _predicates(rng, depth)


def _predicates(rng: Random, depth: int) -> str:
    return "".join(f"[{_predicate(rng, depth)}]" for _ in range(rng.choice([0, 0, 0, 1, 1, 2]) if depth else 0))


def _predicate(rng: Random, depth: int) -> str:
    kind = rng.random()

    def inner() -> str:
        return _predicate(rng, depth - 1) if depth > 1 else _relative(rng, 0)

    if kind < 0.12:
        return f"{inner()} {rng.choice(['and', 'or'])} {inner()}"
    if kind < 0.2:
        return f"not({inner()})"
    if kind < 0.24:
        return f"({inner()})"
    if kind < 0.32:
        return rng.choice(["1", "2", "last()", "position() > 1", "position() = last()", "true()", "0", "1 + 1"])
    if kind < 0.44:
        return _function(rng)
    path = _relative(rng, depth - 1)
    if kind < 0.8:
        sides = [path, rng.choice(CONSTANTS)]
        rng.shuffle(sides)
        return f"{sides[0]} {_op(rng)} {sides[1]}"
    return path


def _relative(rng: Random, depth: int) -> str:
    start = rng.choice(["", "", "", ".//", "./", "descendant::", "self::"])
    attribute = "@" + rng.choice([*ATTRIBUTES, "*", "q:x"])
    path = rng.choice([start + rng.choice(TESTS) + _predicates(rng, depth), start + rng.choice(TESTS), attribute, "."])
    if path == "." or rng.random() < 0.6:
        return path
    ends = ["/text()", "/@x", "//@y", "/.", "/a", "//b", "//text()", "/@x/text()", "/node()"]
    return path + rng.choice(["/text()", "/text()", "/b", "/.", "//c"] if path == attribute else ends)


def _function(rng: Random) -> str:
    path, text = _relative(rng, 0), rng.choice(["'t'", "'1'", "''", "'2'"])
    return rng.choice(
        [
            f"contains({path}, {text})",
            f"starts-with({path}, {text})",
            f"count({path}) {_op(rng)} {rng.randint(0, 3)}",
            f"string-length({path}) {_op(rng)} {rng.randint(0, 3)}",
            f"normalize-space({path}) = {text}",
            f"substring({path}, 1, 1) = {text}",
            f"substring-before({path}, {text}) = '1'",
            f"concat({path}, {text}) != {text}",
            f"local-name({rng.choice(['', path])}) = '{rng.choice('abx')}'",
            f"name() = '{rng.choice(NAMES)}'",
            "namespace-uri() = 'urn:one'",
            f"sum({path}) > 1",
            f"floor({path}) = 1 or round({path}) = 2",
            f"number({path}) * 2 >= 1 + 1",
            f"{path} mod 2 = 1",
            f"boolean({path}) = {rng.choice(['true()', 'false()'])}",
        ]
    )


def _op(rng: Random) -> str:
    return rng.choice(["=", "=", "!=", "<", "<=", ">", ">="])


# Rounds


def run(verdicts: int, seed: int) -> Outcome:
    """Rounds until so many verdicts were compared, or very much was found."""
    outcome, number = Outcome(), 0
    while outcome.verdicts < verdicts and len(outcome.findings) < FINDINGS_MAX:
        where = f"--seed {seed}, round {number}"
        try:
            play(Random(f"xpath {seed} {number}"), outcome, where)
        except Exception as error:  # whatever is raised by a query that was taken is a finding
            outcome.findings.append(f"{where}: {type(error).__name__}: {error}")
        number += 1
    return outcome


def play(rng: Random, outcome: Outcome, where: str) -> None:
    """One round."""
    interests = dict(_taken([draw_query(rng) for _ in range(QUERIES)], outcome, where))
    outcome.queries += len(interests)
    every = list(interests.values())
    few = rng.sample(every, min(len(every), rng.randint(1, FEW)))
    sets = [(_set_of(few), {each.id for each in few}), (_set_of(every), {each.id for each in every})]
    automata = {each.id: _automaton(each) for each in every if each.meaning.is_exact}
    pairs = [(one, other) for one, other in (rng.sample(every, 2) for _ in range(PAIRS)) if KIND.covers(one, other)]
    for _ in range(DOCUMENTS):
        document = draw_document(rng)
        root = parse(document.encode())
        found = [(together.match(root), held) for together, held in sets]
        for text, interest in interests.items():
            expected = lxml_finds(text, root)
            given = [interest.id in met for met, held in found if interest.id in held]
            given.append(KIND.matches(interest, root))
            if interest.id in automata:
                given.append(bool(automata[interest.id].match(root)))
            outcome.verdicts += len(given)
            outcome.met += expected
            if given != [expected] * len(given):
                outcome.findings.append(f"{where}: {text!r} on {document!r}: {given}, lxml {expected}")
        for wide, narrow in pairs:
            if KIND.matches(narrow, root) and not KIND.matches(wide, root):
                outcome.findings.append(f"{where}: {wide.text!r} does not cover {narrow.text!r}: {document!r}")


def _taken(texts: list[str], outcome: Outcome, where: str) -> Iterator[tuple[str, Interest]]:
    for text in texts:
        try:
            interest = KIND.parse(text)
        except InterestError as error:
            reason = str(error)
            if reason.startswith("no valid") and is_valid(text):
                outcome.findings.append(f"{where}: {text!r} is valid: {reason}")
            outcome.refused[" ".join(word for word in reason.split()[:8] if not word.isdigit())] += 1
            continue
        if KIND.parse(interest.text).id != interest.id:
            outcome.findings.append(f"{where}: {text!r} is {interest.text!r}, which is not its own")
        yield text, interest


def _set_of(interests: list[Interest]) -> Any:
    together = KIND.make_set()
    for each in interests:
        together.add(each)
    return together


def _automaton(interest: Interest) -> Automaton:
    alone = Automaton()
    alone.add(interest.id, interest.meaning.pattern)
    return alone


def is_valid(text: str) -> bool:
    """Whether lxml takes a query."""
    try:
        etree.XPath(text)
    except etree.XPathError:
        return False
    return True


def lxml_finds(text: str, root: Any) -> bool:
    """Lxml's verdict on what was written. Prefixes mean what the document says, or nothing that it has."""
    prefixes = frozenset([*NAMESPACES, "o"])
    return bool(root.getroottree().xpath(text, namespaces=dict(namespaces_of(root, prefixes))))


def report(verdicts: int, seed: int) -> int:
    """Run it for ``make fuzz``, and print what came of it; returns how many findings there are."""
    started = time.monotonic()
    outcome = run(verdicts, seed)
    taken_s = time.monotonic() - started
    for finding in outcome.findings[:SHOWN_MAX]:
        print(f"  {finding}")
    print(f"{sum(outcome.refused.values())} queries refused:")
    for reason, count in outcome.refused.most_common():
        print(f"  {count:7} {reason} ...")
    print(
        f"{outcome.verdicts} verdicts on {outcome.queries} XPath queries ({outcome.met} times lxml finds something) in "
        f"{taken_s:.0f} s ({outcome.verdicts / taken_s:.0f} a second), {len(outcome.findings)} findings"
    )
    return len(outcome.findings)

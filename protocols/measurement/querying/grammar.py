"""The grammar of statements in lark's notation: a SELECT around the condition of a filter."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from peerd.lib.filter.grammar import Dialect, grammar
from peerd.lib.filter.parse import expected

if TYPE_CHECKING:
    from lark import Lark

_KEPT: Final = ("ASC", "DESC", "ANALYZE", "MIN", "MAX")
KEYWORDS: Final = (
    *("SELECT", "FROM", "JOIN", "ON", "WHERE", "GROUP", "SKYLINE", "OF", "ORDER", "BY", "LIMIT"),
    *("WITHIN", "STALE", "REQUIRE", "BUDGET", "EXPLAIN", "WATCH", *_KEPT),
)
"""They are no names of columns where the grammar expects the word; in double quotes they always are."""

_RULES: Final = r"""
statement: (explain | watch)? _SELECT selected _FROM table joined? where? group? skyline? order? limit? option*
explain: _EXPLAIN ANALYZE?
watch: _WATCH
selected: STAR | shown ("," shown)*
?shown: name | aggregate
aggregate: FUNCTION "(" (STAR | name) ")"
table: NAME NAME?
joined: "," table | _JOIN table _ON disjunction
where: _WHERE disjunction
group: _GROUP _BY name ("," name)*
skyline: _SKYLINE _OF wished ("," wished)*
wished: name (MIN | MAX)?
order: _ORDER _BY sorted ("," sorted)*
sorted: shown (ASC | DESC)?
limit: _LIMIT NUMBER
?option: within | stale | require | budget
within: _WITHIN bound ("," bound)*
bound: NAME? (NUMBER | QUANTITY)
stale: _STALE QUANTITY
require: _REQUIRE NUMBER
budget: _BUDGET NUMBER

%extend name: PAIR | CALL
%extend value: QUANTITY
%extend item: QUANTITY
%extend left: QUANTITY

STAR: "*"
FUNCTION.10: /(?:COUNT|SUM|MEAN|AVG|MIN|MAX)(?=\s*\()/i
PAIR.8: /[^\W\d][\w.\-]*\s+TO\s+'(?:[^']|'')*'/i
CALL.7: /[^\W\d]\w*\s*\(\s*[^\W\d][\w.]*\s*(?:,\s*[^\W\d][\w.]*\s*)?\)/
QUANTITY.6: /[0-9]+(?:\.[0-9]+)?(?:us|ms|s|m|h|d|B|KiB|MiB|GiB|TiB)(?![\w.])/
"""


@lru_cache(maxsize=1)
def statement_parser() -> Lark:
    """The parser, made once; lark is loaded when somebody first asks a query."""
    from lark import Lark

    keywords = "\n".join(f"{'' if word in _KEPT else '_'}{word}.9: /{word}(?![\\w.\\-])/i" for word in KEYWORDS)
    text = f"{grammar(Dialect.SQL)}\n{_RULES}\n{keywords}\n"
    return Lark(text, start="statement", parser="lalr", lexer="contextual")


def expected_here(terminals: set[str]) -> str:
    """Say in words what the grammar would have accepted at that place."""
    if "FUNCTION" in terminals:
        return "a column or an aggregate such as COUNT(*) or MEAN(cpu)"
    words = [word for word in KEYWORDS if terminals & {word, f"_{word}"}]
    if "OPERATOR" in terminals or not words:
        return expected(terminals)
    more = [word for word in ("AND", "OR") if f"_{word}" in terminals]
    return " or ".join([*more, *words, *(["the end"] if "$END" in terminals else [])])

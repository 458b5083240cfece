"""A statement as a value, its grammar, and how it is read from text: a SELECT around the condition of a filter.

What cannot be meant is refused at its place, as in filters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

from peerd.errors import nearest
from peerd.frozen import Frozen
from peerd.lib.filter.errors import FilterError
from peerd.lib.filter.grammar import Dialect, grammar
from peerd.lib.filter.parse import Builder, check_size, expected, syntax_error
from peerd.lib.filter.tree import Constant, Node, all_of, check_limits
from peerd.lib.filter.values import Literal
from peerd.quantities import parse_duration, parse_size

if TYPE_CHECKING:
    from lark import Lark, Token

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
STATEMENT_TOKENS_MAX: Final = 512
"""Most words, values and signs in a statement: with it, one is read or refused within 10 ms."""
COLUMNS_MAX: Final = 64
"""The largest number of columns that a statement shows, groups by or sorts by."""
LIMIT_MAX: Final = 10_000
"""The largest LIMIT."""
BUDGET_MAX: Final = 1_000_000
"""The largest BUDGET, messages."""
STALE_MAX_S: Final = 365 * 86_400.0
"""The largest STALE."""
WITHIN_MAX: Final = 1e15
"""The largest WITHIN."""
TABLES: Final = ("nodes", "region")
"""What stands after FROM; both are all nodes that are asked about."""
OF_THE_PAPER: Final = {"cpu_load": "cpu", "latency": "rtt"}
"""What the paper's functions are called here."""
ALL: Final = ""
"""The key of a WITHIN that names no measurement."""
_PAIR: Final = re.compile(r"([\w.\-]+)\s+TO\s+'(.*)'", re.IGNORECASE | re.DOTALL)
_CALL: Final = re.compile(r"(\w+)\s*\(\s*(\w+)(?:\.node)?\s*(?:,\s*(\w+)(?:\.node)?\s*)?\)")


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


class NamedColumn(Frozen):
    """A column. ``label``: what conditions call it. ``side``: of which of two joined tables.

    ``peer``, of a measurement of two nodes: the other one, as text, or the other side of the join. ``at``: its place.
    """

    label: str
    name: str
    side: int = 0
    peer: str | int | None = None
    at: int = 0


class Selected(Frozen):
    """What a column of the answer shows: a column of the nodes, or an aggregate of one (of none: ``COUNT(*)``)."""

    label: str
    column: NamedColumn | None
    function: str = ""


class SortKey(Frozen):
    """One part of ORDER BY."""

    selected: Selected
    descending: bool


class Statement(Frozen):
    """What somebody wants to know. ``selected`` is empty for ``*``; ``columns`` has all that is named, by its label."""

    text: str
    selected: tuple[Selected, ...]
    tables: tuple[str, ...] = ("nodes",)
    """What the sides are called: one, or two that are joined."""
    where: Node = Constant(True)
    columns: Mapping[str, NamedColumn] = {}
    group_by: tuple[NamedColumn, ...] = ()
    sort_by: tuple[SortKey, ...] = ()
    skyline: tuple[SortKey, ...] = ()
    """Rows are shown that no other row beats in all of these; descending: the most is the best."""
    limit: int | None = None
    within: Mapping[str, float] = {}
    """Half-widths of measurements by name; see `ALL`."""
    stale_s: float | None = None
    require: float | None = None
    budget: int | None = None
    explain: str = ""
    """"plan": say what would be read; "analyze": also what it cost."""
    watch: bool = False

    @property
    def is_grouped(self) -> bool:
        """Whether the rows of the answer are groups of nodes."""
        return bool(self.group_by) or any(each.function for each in self.selected)

    @property
    def goodness(self) -> float:
        """The share of rows that has to be certain. Without REQUIRE: all, unless WITHIN says what is good enough."""
        return self.require if self.require is not None else 0.0 if self.within else 1.0


def parse_statement(text: str) -> Statement:
    """Read a statement. Raises `FilterError` with the place, and `FilterTooLarge` when a limit is exceeded."""
    check_size(text, Dialect.SQL, "a query", STATEMENT_TOKENS_MAX)
    import lark  # here, so that a process that never sees a query does not load it

    text = text.rstrip().removesuffix(";")
    try:
        found = statement_parser().parse(text)
    except lark.exceptions.UnexpectedInput as error:
        raise syntax_error(text, error, expected_here) from None
    return _StatementBuilder(text, cast(Any, found.children)).statement()


class _StatementBuilder(Builder):
    """Turns the tree that lark parses into a statement."""

    def __init__(self, text: str, parts: list[Any]) -> None:
        super().__init__(text, None, Dialect.SQL)
        self._parts = {part.data: part for part in parts}
        for part in parts:
            if part is not self._parts[part.data]:
                self._refuse(f"{part.data.upper()} is given twice", self._parts[part.data])
        self._columns: dict[str, NamedColumn] = {}
        tables = [self._parts["table"], *(child for child in self._of("joined") if child.data == "table")]
        for table in tables:
            if table.children[0] not in TABLES:
                self._refuse(f"no table {str(table.children[0])!r:.60}{nearest(table.children[0], TABLES)}", table)
        self._tables = tuple(str(table.children[-1]) for table in tables)
        if len(set(self._tables)) < len(tables):
            self._refuse("two tables need different names, as in FROM nodes a JOIN nodes b ON ...", tables[1])

    def _of(self, rule: str) -> list[Any]:
        return self._parts[rule].children if rule in self._parts else []

    def _refuse(self, message: str, where: Any) -> NoReturn:
        while hasattr(where, "children"):
            where = where.children[0]
        raise FilterError(message, text=self.text, column=where.start_pos)

    def statement(self) -> Statement:
        """The statement."""
        is_star = getattr(self._of("selected")[0], "type", "") == "STAR"
        conditions = [child for rule in ("joined", "where") for child in self._of(rule) if child.data != "table"]
        statement = Statement(
            self.text,
            () if is_star else self._listed("selected", self.selected),
            self._tables,
            check_limits(all_of(map(self.node, conditions))),
            self._columns,
            self._listed("group", lambda found: self.column(found.children[0])),
            self._listed("order", self._sort_key),
            self._listed("skyline", self._sort_key),
            cast(int | None, self._limited("limit", 1, LIMIT_MAX)),
            dict(map(self._bound, self._of("within"))),
            self._limited("stale", 1e-6, STALE_MAX_S),
            self._limited("require", 0.0, 1.0),
            cast(int | None, self._limited("budget", 0, BUDGET_MAX)),
            "" if "explain" not in self._parts else "analyze" if self._of("explain") else "plan",
            "watch" in self._parts,
        )
        self._check(statement)
        return statement

    def _listed(self, rule: str, read: Any) -> tuple[Any, ...]:
        if len(self._of(rule)) > COLUMNS_MAX:
            self._refuse(f"at most {COLUMNS_MAX} columns", self._of(rule)[COLUMNS_MAX])
        return tuple(map(read, self._of(rule)))

    def _check(self, statement: Statement) -> None:
        """What is shown and sorted by can be told of the rows that there will be."""
        if not statement.selected and (statement.is_grouped or len(self._tables) > 1):
            self._refuse("with GROUP BY or JOIN, columns have to be named", self._parts["selected"])
        groups, shown = ({each.label for each in group} for group in (statement.group_by, statement.selected))
        for each, found in zip(statement.selected, self._of("selected"), strict=False):
            if statement.is_grouped and not each.function and each.label not in groups:
                self._refuse(f"{each.label} is neither in GROUP BY nor in an aggregate", found)
        if statement.skyline and (statement.is_grouped or len(self._tables) > 1):
            self._refuse("SKYLINE is of single nodes, without GROUP BY or JOIN", self._parts["skyline"])
        for key, found in zip(statement.sort_by, self._of("order"), strict=True):
            if (statement.is_grouped or key.selected.function) and key.selected.label not in shown:
                self._refuse("groups are sorted by what is shown of them", found)

    def selected(self, found: Any) -> Selected:
        """A column or an aggregate."""
        if found.data == "name":
            named = self.column(found.children[0])
            return Selected(named.label, named)
        word, what = found.children[0].upper().replace("AVG", "MEAN"), found.children[1]
        column = self.column(what.children[0]) if hasattr(what, "children") else None
        if column is None and word != "COUNT":
            self._refuse(f"{word} is of a column", what)
        return Selected(f"{word}({'*' if column is None else column.label})", column, word)

    def _sort_key(self, found: Any) -> SortKey:
        shown, *direction = found.children
        return SortKey(self.selected(shown), bool(direction) and direction[0].type in ("DESC", "MAX"))

    def _limited(self, rule: str, low: float, high: float) -> float | None:
        if rule not in self._parts:
            return None
        [token] = self._of(rule)
        value = cast(float, self.quantity(token))
        is_whole = isinstance(value, int)
        if not low <= value <= high or (isinstance(low, int) and not is_whole) or (rule == "stale" and is_whole):
            unit = " seconds" if token.type == "QUANTITY" else ""
            self._refuse(f"{rule.upper()} is a number from {low:g} to {high:g}{unit}, not {token:.60}", token)
        return value

    def _bound(self, found: Any) -> tuple[str, float]:
        *name, token = found.children
        value = cast(float, self.quantity(token))
        if not 0.0 <= value <= WITHIN_MAX:
            self._refuse(f"WITHIN is a half-width from 0 to {WITHIN_MAX:g}, not {token:.60}", token)
        return (str(name[0]).rpartition(".")[2] if name else ALL), float(value)

    # --- columns ----------------------------------------------------------------------------------------------------

    def name(self, token: Token) -> str:
        """What conditions call the column."""
        return self.column(token).label

    def column(self, token: Token) -> NamedColumn:
        """The column that a token names: ``cpu``, ``a.cpu``, ``rtt TO 'host'``, and of two joined tables ``rtt(a, b)``.

        As the paper writes them, also ``cpu_load(a.node)`` and ``latency(a.node, b.node)``.
        """
        peer: str | int | None = None
        if token.type == "CALL":
            function, table, other = _CALL.fullmatch(token).groups()  # type: ignore[union-attr]  # it is a token of this form
            text = f"{table}.{OF_THE_PAPER.get(function.lower(), function.lower())}"
            if other is not None:
                if {table, other} != set(self._tables):
                    self._refuse(f"{function} is of two joined tables, as in {function}(a, b)", token)
                peer = self._tables.index(other)
        elif token.type == "PAIR":
            text, peer = _PAIR.fullmatch(token).groups()  # type: ignore[union-attr]  # as above
        else:
            text = super().name(token)
        table, _, name = text.partition(".")
        if table not in self._tables or not name:
            if len(self._tables) > 1:
                self._refuse(f"a column of {' or '.join(self._tables)} is expected, as in {self._tables[0]}.cpu", token)
            table, name = self._tables[0], text
        label = name if len(self._tables) == 1 else f"{table}.{name}"
        if peer is not None:
            label = f"{label} TO '{peer}'" if isinstance(peer, str) else f"{name}({table}, {self._tables[peer]})"
        made = NamedColumn(label, name, self._tables.index(table), peer, cast(int, token.start_pos))
        return self._columns.setdefault(label, made)

    # --- values -----------------------------------------------------------------------------------------------------

    def literal(self, found: Any) -> Literal:
        """A value, also one with a unit."""
        token = found.children[0]
        return self.quantity(token) if token.type == "QUANTITY" else super().literal(found)

    def quantity(self, token: Token) -> int | float:
        """Seconds of a duration, bytes of a size; a plain number as it is."""
        if token.type == "NUMBER":
            return cast(int | float, self._number(token))
        try:
            return parse_size(str(token)) if token.endswith("B") else parse_duration(str(token))
        except ValueError as error:
            self._refuse(str(error), token)

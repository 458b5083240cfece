"""The query that every node runs over its own files: text form, validation, wire form.

It names the two functions of the paper (Cappos and Hartman 2008, section 4): *extraction* (which files, which
records, which fields) and *aggregation* (which mergeable function of them). A query is data, never code: nodes
agree on its meaning by its version, so a node refuses a wire form that it does not know to the last field
(ignoring an unknown condition would give a wrong number that looks right).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar, cast, get_args

import msgpack

from peerd.errors import ProtocolError
from peerd.frozen import Frozen
from peerd.lib.filter.errors import FilterError
from peerd.lib.filter.grammar import Dialect
from peerd.lib.filter.parse import parse
from peerd.lib.filter.tree import Compare, Node, all_of, check_limits, names
from peerd.lib.filter.write import write
from protocols.aggregation.calls import KEYWORDS, NAME, Call, plain_number, show_name
from protocols.aggregation.groups import GROUPS_HARD_MAX, GROUPS_MAX, GROUPS_MAX_DEFAULT, Grouped
from protocols.aggregation.numbers import Number, parse_number
from protocols.aggregation.patterns import LinePattern, QueryError, RegexEngine, check_pattern_text, compile_pattern

if TYPE_CHECKING:
    from protocols.aggregation.functions import Function
    from protocols.aggregation.slices import SlicedGroups

Format: TypeAlias = Literal["ndjson", "csv", "text"]
Operator: TypeAlias = Literal["=", "!=", "<", "<=", ">", ">="]

FORMATS: Final[tuple[str, ...]] = get_args(Format)
OPERATORS: Final[tuple[str, ...]] = get_args(Operator)

WIRE_VERSION: Final = 3
QUERY_CHARACTERS_MAX: Final = 4096
"""The longest query in text form, in characters."""
QUERY_BYTES_MAX: Final = 16 * 1024
"""Longest wire form: it has to fit into one control message."""
NAME_BYTES_MAX: Final = 256
"""The longest name of a field, in bytes of UTF-8."""
CONDITIONS_MAX: Final = 16
"""Most conditions in a query that comes in parts; a filter in text has the limits of `peerd.lib.filter.limits`."""
FIELDS: Final = 7
"""The number of fields of a query's wire form."""
CALLS_MAX: Final = 16
"""Most functions in a query."""
KEYS_MAX: Final = 8
"""Most fields behind ``by``."""
ORIGIN_FIELDS: Final = ("@node", "@host", "@file")
"""Fields that every record has: the id of its node, the name of its machine, and its file below the data root."""
TAG_PREFIX: Final = "@tag."
"""Begins the fields that are the tags of a record's node: `peerd.api.Host.tags`."""
GLOB_CHARACTERS_MAX: Final = 512
GLOB_SEGMENTS_MAX: Final = 32


QUERY_HELP: Final = r"""
QUERY     FUNCTION [, FUNCTION ...]   [by FIELD [, FIELD ...]]   [where FILTER]
FUNCTION  count | sum(FIELD) | min(FIELD) | max(FIELD) | mean(FIELD) | variance(FIELD) | stddev(FIELD)
          median(FIELD) | p99(FIELD), also p5 to p9999 | quantile(FIELD, 0.25)   within 1 %, from LOW to HIGH
          distinct(FIELD)               how many different values, within 3.2 % in 95 of 100 answers
          histogram(FIELD, EDGE, ...)   how many below, between and above the edges
          top(FIELD, 10) | bottom(FIELD, 10) | values(FIELD, 100)   the largest, the smallest, the different ones
          vector(FIELD)                 sum of JSON arrays of numbers, place by place
FILTER    FIELD = VALUE, also != < <= > >= BETWEEN IN LIKE MATCHES IS NULL, with AND, OR, NOT: see docs/filters.md;
          numbers compare as numbers, words and "quoted" values as text
FIELD     a JSON key (nested: request.status), a CSV column, or a named group of --pattern; "quoted" if unusual;
          @node, @host and @file: which node, machine and file a record is of; @tag.NAME: a tag of its node

  count by status where method = GET               one count for each status
  sum(bytes) by user                               bytes of each user, largest first
  count, mean(ms), p99(ms) by host, path           several functions, for each pair of host and path
  count by @host, level where "@tag.role" = web    where the records are
  count where status >= 500 or path like '/api/%'  the filter language, with words for text
  count by word    --pattern '(?P<word>\w+)'       every match of the pattern in every line

--files     glob below the node's data root, default **/* ; ** is any number of folders
--format    ndjson, csv (first row names the columns) or text; text when there is a pattern, csv for *.csv
--pattern   regular expression (RE2) with named groups; each match is a record
""".strip("\n")


@dataclass(frozen=True, slots=True)
class Query:
    """What to extract, and how to aggregate it. It is validated when made, and raises `QueryError`."""

    calls: tuple[Call, ...]
    """The functions, all of them over the same records: those that have every field that the query names."""
    by: tuple[str, ...] = ()
    """The fields whose values make the groups; none for one value over all records."""
    where: Node | None = None
    """The filter that a record must meet; see docs/filters.md. A condition on a field that it lacks is unknown."""
    files: str = "**/*"
    format: Format = "ndjson"
    pattern: str | None = None
    groups_max: int = GROUPS_MAX_DEFAULT

    def __post_init__(self) -> None:
        _check_choice("format", self.format, FORMATS)
        _check_calls(self.calls)
        if len(self.by) > KEYS_MAX or len(set(self.by)) < len(self.by):
            raise QueryError(f"by takes at most {KEYS_MAX} different fields")
        for name in self.fields():
            _check_text("a field name", name)
        if self.where is not None:
            _check_where(self.where)
        check_glob(self.files)
        if type(self.groups_max) is not int or not 1 <= self.groups_max <= GROUPS_MAX:
            raise QueryError(f"groups_max is a whole number from 1 to {GROUPS_MAX}, not {self.groups_max!r}")
        self._check_pattern()

    @property
    def function(self) -> Function[Any]:
        """Return the function that all calls make together."""
        from protocols.aggregation.registry import function_of  # a node that is never asked needs no functions

        return function_of(self.calls)

    @property
    def monoid(self) -> Function[Any] | Grouped[Any] | SlicedGroups[Any]:
        """Return the function, or, with a ``by``, the function for each group."""
        if self.is_sliced:
            from protocols.aggregation.slices import SlicedGroups  # few ask for so many groups

            return SlicedGroups(self.function, self.groups_max)
        return Grouped(self.function, self.groups_max) if self.by else self.function

    @property
    def is_sliced(self) -> bool:
        """Whether there may be more groups than a value holds as a whole: then it goes in slices."""
        return bool(self.by) and self.groups_max > GROUPS_HARD_MAX

    def _check_pattern(self) -> None:
        if self.format != "text":
            if self.pattern is not None:
                raise QueryError(f"a pattern is for format text, not {self.format}")
            return
        if self.pattern is None:
            raise QueryError("format text needs a pattern with named groups, such as (?P<word>\\w+)")
        check_pattern_text(self.pattern)

    def compiled_pattern(self, engine: RegexEngine) -> LinePattern | None:
        """The pattern as this node runs it; ``None`` when there is none.

        Raises `QueryError` when the engine refuses the pattern or the pattern lacks a group that the query names, and
        `peerd.errors.Unavailable` when the engine is not installed.
        """
        if self.pattern is None:
            return None
        compiled = compile_pattern(self.pattern, engine)
        for name in self.fields():
            if name not in (*compiled.names, *ORIGIN_FIELDS) and not name.startswith(TAG_PREFIX):
                known = ", ".join(compiled.names) or "no named group at all"
                raise QueryError(f"the pattern has no group named {name!r}; it has {known}")
        return compiled

    def fields(self) -> tuple[str, ...]:
        """Every field that the query reads: those of its functions, of its groups, and what its filter names."""
        own = (*(call.field for call in self.calls if call.field is not None), *self.by)
        return own if self.where is None else own + names(self.where)

    @property
    def head(self) -> str:
        """Return the text form up to the filter."""
        by = f" by {', '.join(map(show_name, self.by))}" if self.by else ""
        return ", ".join(map(str, self.calls)) + by

    def __str__(self) -> str:
        """The text form, without the options: ``parse_query(str(query), ...)`` gives the same query."""
        return self.head if self.where is None else f"{self.head} where {write(self.where, Dialect.WORDS)}"

    def to_wire(self) -> bytes:
        """At most `QUERY_BYTES_MAX` bytes of msgpack. Raises `QueryError` when the query is longer."""
        where = None if self.where is None else write(self.where)
        body = WIRE_VERSION, self.head, where, self.files, self.format, self.pattern, self.groups_max
        data = cast(bytes, msgpack.packb(body))
        if len(data) > QUERY_BYTES_MAX:
            raise QueryError(f"the query takes {len(data)} bytes, more than {QUERY_BYTES_MAX}")
        return data

    @staticmethod
    def from_wire(data: bytes) -> Query:
        """Inverse of `to_wire`. Raises `peerd.errors.ProtocolError` for anything that is not a valid query."""
        if len(data) > QUERY_BYTES_MAX:
            raise ProtocolError("aggregation_query", f"{len(data)} bytes, more than {QUERY_BYTES_MAX}")
        try:
            body = msgpack.unpackb(data, use_list=False, raw=False, max_array_len=FIELDS, max_map_len=0, max_ext_len=0)
            return _query_from_tuple(body)
        except QueryError as error:
            raise ProtocolError("aggregation_query", error.message) from error
        except (ValueError, msgpack.exceptions.UnpackException) as error:
            raise ProtocolError("aggregation_query", f"not msgpack: {type(error).__name__}") from error


def _query_from_tuple(body: object) -> Query:
    if not isinstance(body, tuple) or len(body) != FIELDS:
        raise QueryError(f"expected an array of {FIELDS} fields")
    version, head, where, files, format_, pattern, groups_max = body
    if type(version) is not int or version != WIRE_VERSION:
        raise QueryError(f"version {version!r:.20}, expected {WIRE_VERSION}")
    for label, value in (("functions", head), ("files", files), ("format", format_)):
        if not isinstance(value, str):
            raise QueryError(f"{label} is not text")
    for label, value in (("where", where), ("pattern", pattern)):
        if value is not None and not isinstance(value, str):
            raise QueryError(f"{label} is neither text nor nil")
    calls, by, inline = _Parser(head).parse()
    if inline is not None:
        raise QueryError("a filter among the functions")
    node = None if where is None else _parse_where(where, Dialect.SQL)
    return Query(calls, by, node, files, format_, pattern, groups_max)


def conditions(parts: Iterable[tuple[str, str, Number | str]]) -> Node | None:
    """The filter of ``(field, operator, value)``, all of which must hold; ``None`` for none."""
    made = [Compare(field, "<>" if operator == "!=" else operator, value) for field, operator, value in parts]
    return all_of(made) if made else None


def _parse_where(text: str, dialect: Dialect) -> Node:
    try:
        return parse(text, dialect=dialect)
    except FilterError as error:
        raise QueryError(error.message, text=error.text, column=error.column) from error


def _check_where(where: Node) -> None:
    try:
        check_limits(where)
    except FilterError as error:
        raise QueryError(error.message) from error


def _check_calls(calls: tuple[Call, ...]) -> None:
    if not 0 < len(calls) <= CALLS_MAX or len(set(calls)) < len(calls):
        raise QueryError(f"a query has 1 to {CALLS_MAX} functions, each of them once")
    from protocols.aggregation.registry import function_of, takes_field

    function_of(calls)
    for call in calls:
        is_wanted = takes_field(call.name)
        if (call.field is not None) != is_wanted:
            wanted = "needs a field" if is_wanted else "counts records and takes no field"
            raise QueryError(f"{call.name} {wanted}")


def _check_choice(label: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise QueryError(f"{label} is one of {', '.join(choices)}, not {value!r:.60}")


def _check_text(label: str, value: object) -> None:
    if not isinstance(value, str):
        raise QueryError(f"{label} is not text")
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise QueryError(f"{label} is not valid Unicode: {value!r:.60}") from error
    if not size or size > NAME_BYTES_MAX or "\0" in value:
        raise QueryError(f"{label} has 1 to {NAME_BYTES_MAX} bytes and no NUL, not {value!r:.60}")


def check_glob(glob: str) -> None:
    """Raises `QueryError` unless ``glob`` stays below the root: relative, ``/`` between segments, no ``..``."""
    if not 0 < len(glob) <= GLOB_CHARACTERS_MAX:
        raise QueryError(f"files is a glob of 1 to {GLOB_CHARACTERS_MAX} characters")
    if "\0" in glob or "\\" in glob or not glob.isprintable():
        raise QueryError("files has no backslash and no unprintable character")
    if glob.startswith(("/", "~")) or re.match("[A-Za-z]:", glob):
        raise QueryError(f"files is relative to the node's data root, not absolute: {glob!r}")
    segments = glob.split("/")
    if ".." in segments:
        raise QueryError(f"files may not leave the node's data root with '..': {glob!r}")
    if "" in segments or "." in segments:
        raise QueryError(f"files has an empty or '.' segment: {glob!r}")
    if any("**" in segment and segment != "**" for segment in segments):
        raise QueryError(f"'**' in files stands alone between slashes: {glob!r}")
    if len(segments) > GLOB_SEGMENTS_MAX:
        raise QueryError(f"files has at most {GLOB_SEGMENTS_MAX} segments, not {len(segments)}")


_T = TypeVar("_T")

# --- text form ----------------------------------------------------------------------------------------------

_TOKEN: Final = re.compile(r'\s*(?:("(?:[^"\\]|\\.)*")|([(),])|([^\s(),"]+))')


class _Token(Frozen):
    text: str
    column: int
    quoted: bool = False


def _tokens(text: str) -> list[_Token]:
    """Everything up to ``where``, which is the last token; what follows it is the filter's."""
    tokens: list[_Token] = []
    position, end = 0, len(text.rstrip())
    while position < end and not (tokens and not tokens[-1].quoted and tokens[-1].text.lower() == "where"):
        match = _TOKEN.match(text, position)
        if match is None:
            column = position + len(text[position:]) - len(text[position:].lstrip())
            raise QueryError("did not expect a quote that is never closed", text=text, column=column)
        kind = cast(int, match.lastindex)
        tokens.append(_Token(match[kind], match.start(kind), kind == 1))
        position = match.end()
    return tokens


class _Parser:
    """Parses ``FUNCTION, ... [by FIELD, ...] [where FILTER]``, with one token of look-ahead."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = _tokens(text)
        self.position = 0

    def fail(self, expected: str) -> QueryError:
        """Return the error for "something else was expected here"."""
        if self.position < len(self.tokens):
            token = self.tokens[self.position]
            return QueryError(f"expected {expected}, found {token.text!r}", text=self.text, column=token.column)
        column = len(self.text.rstrip())
        return QueryError(f"expected {expected}, found the end", text=self.text, column=column)

    def accept(self, *words: str) -> str | None:
        """Takes the next token when it is one of the (lower-case) words."""
        if self.position < len(self.tokens):
            token = self.tokens[self.position]
            if not token.quoted and token.text.lower() in words:
                self.position += 1
                return token.text.lower()
        return None

    def expect(self, expected: str, *words: str) -> str:
        """Like `accept`, but raises when it is none of them."""
        word = self.accept(*words)
        if word is None:
            raise self.fail(expected)
        return word

    def field(self) -> str:
        """Read the name of a field, bare or quoted."""
        if self.position >= len(self.tokens):
            raise self.fail("a field name")
        token = self.tokens[self.position]
        if not token.quoted and (not NAME.fullmatch(token.text) or token.text.lower() in KEYWORDS):
            raise self.fail("a field name (put unusual ones in double quotes)")
        name = self.unquote(token) if token.quoted else token.text
        self.position += 1
        return name

    def unquote(self, token: _Token) -> str:
        """Return the text of a quoted token, which uses JSON's escapes."""
        try:
            return cast(str, json.loads(token.text))
        except ValueError as error:
            raise self.fail("a quoted text with JSON's escapes") from error

    def filter(self) -> Node:
        """Read the filter behind ``where``, up to the end of the text. Errors give columns of the whole text."""
        start = self.tokens[-1].column + len("where")
        try:
            return parse(self.text[start:], dialect=Dialect.WORDS)
        except FilterError as error:
            column = None if error.column is None else error.column + start
            raise QueryError(error.message, text=self.text, column=column) from error

    def call(self) -> Call:
        """Read a function, the field that it takes, and the numbers behind it."""
        from protocols.aggregation.registry import function_names, function_of, takes_field

        start = self.position
        if start == len(self.tokens) or self.tokens[start].quoted:
            raise self.fail(f"one of {', '.join(function_names())}")
        name, column = self.tokens[start].text.lower(), self.tokens[start].column
        try:
            is_wanted = takes_field(name)
        except QueryError as error:
            raise QueryError(error.message, text=self.text, column=column) from error
        self.position += 1
        if not is_wanted:
            return Call(name)
        self.expect(f"'(' and a field, as in {name}(bytes)", "(")
        field, arguments = self.field(), []
        while self.accept(","):
            arguments.append(self.number())
        self.expect("')'", ")")
        call = Call(name, field, tuple(arguments))
        try:
            function_of((call,))
        except QueryError as error:
            raise QueryError(error.message, text=self.text, column=column) from error
        return call

    def number(self) -> Number:
        """Read a number."""
        token = self.tokens[self.position] if self.position < len(self.tokens) else None
        number = None if token is None or token.quoted else parse_number(token.text)
        if number is None:
            raise self.fail("a number")
        self.position += 1
        return plain_number(number)

    def listed(self, item: Callable[[], _T], most: int) -> tuple[_T, ...]:
        """Read one or more items, with commas between them."""
        items = [item()]
        while self.accept(","):
            if len(items) == most:
                raise self.fail(f"at most {most} of these")
            items.append(item())
        return tuple(items)

    def parse(self) -> tuple[tuple[Call, ...], tuple[str, ...], Node | None]:
        """Read functions, group fields and filter."""
        calls = self.listed(self.call, CALLS_MAX)
        by = self.listed(self.field, KEYS_MAX) if self.accept("by") else ()
        where = self.filter() if self.accept("where") else None
        if where is None and self.position < len(self.tokens):
            raise self.fail("'where' or the end" if by else "'by', 'where' or the end")
        return calls, by, where


def parse_query(
    text: str,
    *,
    files: str = "**/*",
    format: Format | None = None,
    pattern: str | None = None,
    groups_max: int = GROUPS_MAX_DEFAULT,
) -> Query:
    """The query of a command line. Without a format: text if there is a pattern, csv for ``*.csv``, else ndjson.

    Raises `QueryError`; for an error in ``text`` it carries the column (0-based) and shows a caret below it.
    """
    if len(text) > QUERY_CHARACTERS_MAX:
        raise QueryError(f"a query has at most {QUERY_CHARACTERS_MAX} characters, not {len(text)}")
    calls, by, where = _Parser(text).parse()
    if format is None:
        format = "text" if pattern is not None else "csv" if files.lower().endswith(".csv") else "ndjson"
    return Query(calls, by, where, files, format, pattern, groups_max)

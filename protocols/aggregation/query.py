"""The query that every node runs over its own files: text form, validation, wire form.

It names the two functions of the paper (Cappos and Hartman 2008, section 4): *extraction* (which files, which
records, which fields) and *aggregation* (which mergeable function of them). A query is data, never code: nodes
agree on its meaning by its version, so a node refuses a wire form that it does not know to the last field
(ignoring an unknown condition would give a wrong number that looks right).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, cast, get_args

import msgpack

from peerd.errors import ProtocolError
from peerd.frozen import Frozen
from peerd.lib.filter.errors import FilterError
from peerd.lib.filter.grammar import Dialect
from peerd.lib.filter.parse import parse
from peerd.lib.filter.tree import Compare, Node, all_of, check_limits, names
from peerd.lib.filter.write import write
from protocols.aggregation import functions
from protocols.aggregation.functions import FUNCTIONS, GROUPS_HARD_MAX, FunctionName, Number
from protocols.aggregation.patterns import LinePattern, QueryError, RegexEngine, check_pattern_text, compile_pattern

Format: TypeAlias = Literal["ndjson", "csv", "text"]
Operator: TypeAlias = Literal["=", "!=", "<", "<=", ">", ">="]

FORMATS: Final[tuple[str, ...]] = get_args(Format)
OPERATORS: Final[tuple[str, ...]] = get_args(Operator)

WIRE_VERSION: Final = 2
QUERY_CHARACTERS_MAX: Final = 4096
"""The longest query in text form, in characters."""
QUERY_BYTES_MAX: Final = 16 * 1024
"""Longest wire form: it has to fit into one control message."""
NAME_BYTES_MAX: Final = 256
"""The longest name of a field, in bytes of UTF-8."""
CONDITIONS_MAX: Final = 16
"""Most conditions in a query that comes in parts; a filter in text has the limits of `peerd.lib.filter.limits`."""
FIELDS: Final = 9
"""The number of fields of a query's wire form."""
GLOB_CHARACTERS_MAX: Final = 512
GLOB_SEGMENTS_MAX: Final = 32

QUERY_HELP: Final = r"""
QUERY     count | sum(FIELD) | min(FIELD) | max(FIELD) | mean(FIELD)   [by FIELD]   [where FILTER]
FILTER    FIELD = VALUE, also != < <= > >= BETWEEN IN LIKE MATCHES IS NULL, with AND, OR, NOT: see docs/filters.md;
          numbers compare as numbers, words and "quoted" values as text
FIELD     a JSON key (nested: request.status), a CSV column, or a named group of --pattern; "quoted" if unusual

  count                                            how many records
  count by status where method = GET               one count for each status
  sum(bytes) by user                               bytes of each user, largest first
  mean(latency_ms) where latency_ms < 60000        exact sum and count, divided once
  count where status >= 500 or path like '/api/%'  the filter language, with words for text
  count by word    --pattern '(?P<word>\w+)'       every match of the pattern in every line

--files     glob below the node's data root, default **/* ; ** is any number of folders
--format    ndjson, csv (first row names the columns) or text; text when there is a pattern, csv for *.csv
--pattern   regular expression (RE2) with named groups; each match is a record
--groups-max  groups kept (the largest); what is folded away is reported as a remainder
""".strip("\n")


@dataclass(frozen=True, slots=True)
class Query:
    """What to extract, and how to aggregate it. It is validated when made, and raises `QueryError`."""

    function: FunctionName
    field: str | None = None
    """The number that is summed or compared; ``None`` for ``count`` only."""
    by: str | None = None
    """The field whose values are the groups; ``None`` for one value over all records."""
    where: Node | None = None
    """The filter that a record must meet; see docs/filters.md. A condition on a field that it lacks is unknown."""
    files: str = "**/*"
    format: Format = "ndjson"
    pattern: str | None = None
    groups_max: int = functions.GROUPS_MAX_DEFAULT

    def __post_init__(self) -> None:
        _check_choice("function", self.function, FUNCTIONS)
        _check_choice("format", self.format, FORMATS)
        if (self.field is None) != (self.function == "count"):
            wanted = "counts records and takes no field" if self.function == "count" else "needs a field"
            raise QueryError(f"{self.function} {wanted}")
        for name in self.fields():
            _check_text("a field name", name)
        if self.where is not None:
            _check_where(self.where)
        check_glob(self.files)
        if type(self.groups_max) is not int or not 1 <= self.groups_max <= GROUPS_HARD_MAX:
            raise QueryError(f"groups_max is a whole number from 1 to {GROUPS_HARD_MAX}, not {self.groups_max!r}")
        self._check_pattern()

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
            if name not in compiled.names:
                known = ", ".join(compiled.names) or "no named group at all"
                raise QueryError(f"the pattern has no group named {name!r}; it has {known}")
        return compiled

    def fields(self) -> tuple[str, ...]:
        """Every field that the query reads: its number, its group, and what its filter names."""
        own = tuple(name for name in (self.field, self.by) if name is not None)
        return own if self.where is None else own + names(self.where)

    def __str__(self) -> str:
        """The text form, without the options: ``parse_query(str(query), ...)`` gives the same query."""
        parts = [self.function if self.field is None else f"{self.function}({_show_name(self.field)})"]
        if self.by is not None:
            parts.append(f"by {_show_name(self.by)}")
        if self.where is not None:
            parts.append(f"where {write(self.where, Dialect.WORDS)}")
        return " ".join(parts)

    def to_wire(self) -> bytes:
        """At most `QUERY_BYTES_MAX` bytes of msgpack. Raises `QueryError` when the query is longer."""
        where = None if self.where is None else write(self.where)
        body = (WIRE_VERSION, self.function, self.field, self.by, where, self.files, self.format, self.pattern)
        data = cast(bytes, msgpack.packb((*body, self.groups_max)))
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
    version, function, name, by, where, files, format_, pattern, groups_max = body
    if type(version) is not int or version != WIRE_VERSION:
        raise QueryError(f"version {version!r:.20}, expected {WIRE_VERSION}")
    for label, value in (("function", function), ("files", files), ("format", format_)):
        if not isinstance(value, str):
            raise QueryError(f"{label} is not text")
    for label, value in (("field", name), ("by", by), ("where", where), ("pattern", pattern)):
        if value is not None and not isinstance(value, str):
            raise QueryError(f"{label} is neither text nor nil")
    node = None if where is None else _parse_where(where, Dialect.SQL)
    return Query(function, name, by, node, files, format_, pattern, groups_max)


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


# --- text form ----------------------------------------------------------------------------------------------

_TOKEN: Final = re.compile(r'\s*(?:("(?:[^"\\]|\\.)*")|([()])|([^\s()"]+))')
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*")
_KEYWORDS: Final = frozenset({"by", "where"})


def _show_name(name: str) -> str:
    return name if _NAME.fullmatch(name) and name.lower() not in _KEYWORDS else json.dumps(name, ensure_ascii=False)


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
    """Parses ``value [by FIELD] [where FILTER]``, with one token of look-ahead."""

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
        if not token.quoted and (not _NAME.fullmatch(token.text) or token.text.lower() in _KEYWORDS):
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

    def parse(self) -> tuple[FunctionName, str | None, str | None, Node | None]:
        """Read function, field, group field and filter."""
        function = cast(FunctionName, self.expect(f"one of {', '.join(FUNCTIONS)}", *FUNCTIONS))
        name = None
        if function != "count":
            self.expect(f"'(' and a field, as in {function}(bytes)", "(")
            name = self.field()
            self.expect("')'", ")")
        by = self.field() if self.accept("by") else None
        where = self.filter() if self.accept("where") else None
        if where is None and self.position < len(self.tokens):
            raise self.fail("'by', 'where' or the end" if by is None else "'where' or the end")
        return function, name, by, where


def parse_query(
    text: str,
    *,
    files: str = "**/*",
    format: Format | None = None,
    pattern: str | None = None,
    groups_max: int = functions.GROUPS_MAX_DEFAULT,
) -> Query:
    """The query of a command line. Without a format: text if there is a pattern, csv for ``*.csv``, else ndjson.

    Raises `QueryError`; for an error in ``text`` it carries the column (0-based) and shows a caret below it.
    """
    if len(text) > QUERY_CHARACTERS_MAX:
        raise QueryError(f"a query has at most {QUERY_CHARACTERS_MAX} characters, not {len(text)}")
    function, name, by, where = _Parser(text).parse()
    if format is None:
        format = "text" if pattern is not None else "csv" if files.lower().endswith(".csv") else "ndjson"
    return Query(function, name, by, where, files, format, pattern, groups_max)

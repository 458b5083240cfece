"""Parses the text of a query into its tree, and checks the types in it. Errors point at the column.

The tree is built while lark reduces its rules, from the leaves up, so that nothing recurses over what somebody wrote.
The contextual lexer tries only what the parser can use next, so the names of labels may be keywords. Each level of
precedence is a rule, from the loosest to the tightest, as Prometheus has them; ``^`` alone is right-associative, and a
sign binds as ``*`` does.
"""

from __future__ import annotations

import re
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, cast

from peerd.errors import nearest
from peerd.lib.filter.values import is_unicode
from protocols.measurement.promql import tree
from protocols.measurement.promql.functions import COMPARISONS, SET_OPERATORS, SIGNATURES
from protocols.measurement.promql.refusals import NOT_HERE, PromqlRefused
from protocols.measurement.promql.tree import Applied, Expression, Grouping, Literal, Matcher, Selector, ValueKind

if TYPE_CHECKING:
    from lark import Lark, Token

TEXT_BYTES_MAX: Final = 8 * 1024
"""The longest query, in bytes of UTF-8."""
TOKENS_MAX: Final = 1024
"""Most words, numbers, texts and signs in a query: with it, parsing takes some ten milliseconds at most."""
DEPTH_MAX: Final = 100
"""The deepest nesting. Each operator of a chain such as ``a + b + c`` counts."""

_AGGREGATIONS: Final = "sum|avg|min|max|count|topk|bottomk|stddev|quantile|stdvar|group|count_values|limitk|limit_ratio"
"""All of Prometheus', so that the ones that are not here are refused by name."""
_KEYWORDS: Final = "and|or|unless|atan2|offset|by|without|on|ignoring|bool|group_left|group_right|inf|nan"
_STRING: Final = r""""(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`[^`]*`"""
_END: Final = r"(?![a-z0-9_:])"

GRAMMAR: Final = rf"""
?start: either
?either: both | either OR matching both -> binary
?both: compared | both AND matching compared -> binary
?compared: added | compared COMPARE matching added -> binary
?added: multiplied | added SIGN matching multiplied -> binary
?multiplied: signed | multiplied TIMES matching signed -> binary
?signed: raised | SIGN signed -> sign
?raised: primary | primary POWER matching signed -> binary
?primary: number | selection | call | aggregation | STRING -> string | "(" either ")"
number: NUMBER | DURATION
selection: (metric [braces] | braces) ["[" number "]"] [_OFFSET [SIGN] number]
metric: NAME | AGGREGATION
braces: "{{" [matcher ("," matcher)* [","]] "}}"
matcher: (LABEL | STRING) MATCH STRING | STRING
call: NAME arguments
aggregation: AGGREGATION grouping arguments | AGGREGATION arguments [grouping]
arguments: "(" [either ("," either)*] ")"
grouping: GROUPING labels
matching: [BOOL] [SIDE labels]
labels: "(" [LABEL ("," LABEL)* [","]] ")"
OR.3: /or{_END}/i
AND.3: /(?:and|unless){_END}/i
BOOL.3: /bool{_END}/i
SIDE.3: /(?:on|ignoring){_END}/i
GROUPING.3: /(?:by|without){_END}/i
_OFFSET.3: /offset{_END}/i
AGGREGATION.2: /(?:{_AGGREGATIONS}){_END}/i
NAME: /(?!(?:{_KEYWORDS}){_END})[a-z_:][a-z0-9_:]*/i
LABEL: /[a-z_][a-z0-9_]*/i
DURATION.2: /(?:[0-9]+(?:ms|[smhdwy]))+(?!\w)/
NUMBER.2: /(?:0x[0-9a-f_]+|(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)(?:e[+\-]?[0-9_]+)?|inf|nan)(?![\w.])/i
STRING: /{_STRING}/s
COMPARE: /==|!=|<=|>=|<|>/
MATCH: /=~|!~|!=|=/
SIGN: /[+\-]/
TIMES: /[*\/%]/
POWER: "^"
%ignore /[ \t\r\n]+|#[^\r\n]*/
"""

SCAN: Final = re.compile(
    rf"(?:{_STRING})|#[^\r\n]*|(?P<open>[(\[{{])|(?P<close>[)\]}}])|(?P<unclosed>[\"'`])|@|:|[\w.:]+|[^\s\w]", re.DOTALL
)
"""Cuts a text into pieces, roughly: enough to refuse what is too large before it is parsed, and to name a piece."""


DURATION_S_MAX: Final = 100 * 365 * 86400.0
"""The longest range or offset."""
_UNITS: Final = {"y": 365 * 86400.0, "w": 7 * 86400.0, "d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_DURATION: Final = re.compile("".join(f"(?:([0-9]+){unit})?" for unit in _UNITS))
_ESCAPE: Final = re.compile(
    rb"\\(?:([abfnrtv\\'\"])|x([0-9a-f]{2})|([0-7]{3})|u([0-9a-f]{4})|U([0-9a-f]{8})|.?)", re.DOTALL | re.IGNORECASE
)


def parse(text: str) -> Expression:
    """The tree of a query. Raises `PromqlRefused` with the column."""
    try:
        _check_size(text)
        import lark  # here, so that a process that never sees a query does not load it

        try:
            expression = cast(Expression, _parser().parse(text))
        except lark.exceptions.UnexpectedInput as error:
            raise _syntax_error(text, error) from None
    except PromqlRefused as error:
        raise PromqlRefused(error.message, text=text, column=error.column) from None
    if any(depth > DEPTH_MAX for _, depth in tree.walk(expression)):
        raise PromqlRefused(f"a query is nested at most {DEPTH_MAX} deep")
    return expression


def read_number(text: str, column: int | None = None) -> float:
    """A number as Go writes it, or the seconds of a duration such as ``1h30m``. Raises `PromqlRefused`."""
    digits = text.lower().replace("_", "")
    try:
        if (match := _DURATION.fullmatch(text)) and text:
            return sum(float(count or 0) * unit for count, unit in zip(match.groups(), _UNITS.values(), strict=True))
        is_octal = digits.startswith("0") and re.fullmatch("[0-7]+", digits)
        return float(int(digits, 8 if is_octal else 16) if is_octal or digits.startswith("0x") else digits)
    except (ValueError, OverflowError):
        message = f"a number or a duration such as 1h30m is expected, not {str(text)!r:.40}"
        raise PromqlRefused(message, column=column) from None


@lru_cache(maxsize=1)
def _parser() -> Lark:
    from lark import Lark

    builder: Any = _Builder()
    return Lark(GRAMMAR, parser="lalr", lexer="contextual", maybe_placeholders=True, transformer=builder)


# --- before parsing -------------------------------------------------------------------------------------------------


def _check_size(text: str) -> None:
    """Refuses what is too long, too deep or has too many parts, without building anything."""
    if len(text) > TEXT_BYTES_MAX or not is_unicode(text) or len(text.encode()) > TEXT_BYTES_MAX:
        raise PromqlRefused(f"a query is valid Unicode of at most {TEXT_BYTES_MAX} bytes")
    depth = 0
    for count, match in enumerate(SCAN.finditer(text), 1):
        depth += (match.lastgroup == "open") - (match.lastgroup == "close")
        if match.lastgroup == "unclosed":
            raise PromqlRefused("a quote that is never closed", column=match.start())
        if depth > DEPTH_MAX or count > TOKENS_MAX:
            limit = f"is nested at most {DEPTH_MAX} deep, and has at most {TOKENS_MAX} words, numbers and signs"
            raise PromqlRefused(f"a query {limit}", column=match.start())


def _syntax_error(text: str, error: Any) -> PromqlRefused:
    column, token = error.pos_in_stream, getattr(error, "token", None)
    if column is None or column >= len(text) or (token is not None and token.type == "$END"):
        return PromqlRefused("the query ends too early", column=len(text.rstrip()))
    match = SCAN.match(text, column)
    word = match[0] if match else text[column]
    if word.lower() in NOT_HERE and (word != ":" or text.rfind("[", 0, column) > text.rfind("]", 0, column)):
        return PromqlRefused(f"{NOT_HERE[word.lower()]} is not in peerd's subset of PromQL", column=column)
    return PromqlRefused(f"{word[:40]!r} is not expected here", column=column)


# --- while parsing --------------------------------------------------------------------------------------------------


class _Builder:
    """For each rule of the grammar, a method that makes its node from those of its parts."""

    def number(self, parts: list[Any]) -> Literal:
        """A number, or a duration in seconds."""
        return Literal(read_number(parts[0], parts[0].start_pos))

    def string(self, parts: list[Any]) -> Literal:
        """A text."""
        return Literal(_unquoted(parts[0]))

    def matcher(self, parts: list[Any]) -> Matcher:
        """A condition on a label, or a name in quotes."""
        if len(parts) == 1:
            return Matcher(tree.NAME, "=", _unquoted(parts[0]))
        name, operator, value = parts
        if "~" in operator:
            try:
                tree.compiled(_unquoted(value))
            except PromqlRefused as error:
                raise PromqlRefused(error.message, column=value.start_pos) from None
        return Matcher(str(name) if name.type == "LABEL" else _unquoted(name), str(operator), _unquoted(value))

    def metric(self, parts: list[Any]) -> tuple[Matcher, ...]:
        """The name before the braces."""
        return (Matcher(tree.NAME, "=", str(parts[0])),)

    def selection(self, parts: list[Any]) -> Selector:
        """A selector with its range and offset."""
        *named, period, sign, offset = parts
        matchers = tuple(matcher for each in named for matcher in each or ())
        range_s, offset_s = (0.0 if each is None else each.value for each in (period, offset))
        reason = ""
        if all(matcher.accepts("") for matcher in matchers):
            reason = "a selector needs at least one matcher that does not match the empty text"
        elif sum(matcher.name == tree.NAME and matcher.operator == "=" for matcher in matchers) > 1:
            reason = "the name of the metric is given twice"
        elif not (max(range_s, offset_s) <= DURATION_S_MAX and (period is None or range_s >= 0.001)):
            reason = "a range is longer than 0, and a range or offset at most 100 years"
        if reason:
            raise PromqlRefused(reason)
        return Selector(matchers, range_s, -offset_s if sign == "-" else offset_s)

    def arguments(self, parts: list[Any]) -> tuple[Any, ...]:
        """What stands between parentheses or braces, or `labels`."""
        return tuple(part for part in parts if part is not None)

    braces = labels = arguments

    def call(self, parts: list[Any]) -> Applied:
        """A function or an aggregation, with by or without on either side of its arguments."""
        token, arguments = parts[0], next(part for part in parts if isinstance(part, tuple))
        name = token.lower() if token.type == "AGGREGATION" else str(token)
        refused = partial(PromqlRefused, column=token.start_pos)
        if name not in SIGNATURES:
            raise refused(f"{name[:60]} is not in peerd's subset of PromQL{nearest(name, list(SIGNATURES))}")
        kind, wanted, least = SIGNATURES[name]
        if not least <= len(arguments) <= len(wanted):
            raise refused(f"{name} takes other arguments: {', '.join(wanted) or 'none'}, not {len(arguments)}")
        for expected, argument in zip(wanted, arguments, strict=False):
            if argument.kind is not expected:
                raise refused(f"{name} takes the type {expected}, not {argument.kind}")
        return Applied(name, arguments, kind, next((part for part in parts if isinstance(part, Grouping)), Grouping()))

    aggregation = call

    def grouping(self, parts: list[Any]) -> Grouping:
        """By, without, on or ignoring."""
        return Grouping(parts[1], parts[0].lower() in ("without", "ignoring"))

    def sign(self, parts: list[Any]) -> Expression:
        """A plus, which changes nothing, or a minus, which is a factor."""
        sign, part = parts
        if part.kind not in (ValueKind.SCALAR, ValueKind.VECTOR):
            raise PromqlRefused(f"a sign does not go with the type {part.kind}", column=sign.start_pos)
        return cast(Expression, part) if sign == "+" else Applied("*", (Literal(-1.0), part), part.kind)

    def matching(self, parts: list[Any]) -> tuple[bool, Grouping | None]:
        """What may stand behind an operator."""
        return parts[0] is not None, None if parts[1] is None else self.grouping(parts[1:])

    def binary(self, parts: list[Any]) -> Applied:
        """An operator between two values."""
        left, sign, (is_bool, matching), right = parts
        operator, kinds, reason = sign.lower(), {left.kind, right.kind}, ""
        if not kinds <= {ValueKind.SCALAR, ValueKind.VECTOR} or (
            operator in SET_OPERATORS and ValueKind.SCALAR in kinds
        ):
            reason = f"{operator} does not go with the types {left.kind} and {right.kind}"
        elif is_bool and operator not in COMPARISONS:
            reason = "bool goes with comparisons only"
        elif matching is not None and ValueKind.SCALAR in kinds:
            reason = "on and ignoring go with instant vectors only"
        elif operator in COMPARISONS and kinds == {ValueKind.SCALAR} and not is_bool:
            reason = f"a comparison of two scalars is written {operator} bool"
        if reason:
            raise PromqlRefused(reason, column=sign.start_pos)
        kind = ValueKind.VECTOR if ValueKind.VECTOR in kinds else ValueKind.SCALAR
        return Applied(operator, (left, right), kind, matching or Grouping(is_without=True), is_bool)


def _unquoted(token: Token) -> str:
    """A text without its quotes and with Go's escapes, which can write single bytes."""
    if token[0] == "`":
        return str(token[1:-1])
    try:
        return _ESCAPE.sub(_unescaped, token[1:-1].encode()).decode()
    except (ValueError, OverflowError):
        raise PromqlRefused("a text has Go's escapes and is valid Unicode", column=token.start_pos) from None


def _unescaped(match: re.Match[bytes]) -> bytes:
    letter, two, octal, four, eight = match.groups()
    if letter:
        return letter.translate(bytes.maketrans(b"abfnrtv", b"\a\b\f\n\r\t\v"))
    return bytes([int(two or octal, 16 if two else 8)]) if two or octal else chr(int(four or eight or b"", 16)).encode()

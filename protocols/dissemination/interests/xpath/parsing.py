"""The grammar of XPath 1.0 (section 3.7 of its recommendation): from a text to a tree of tokens, and back. Pure.

A token's ``symbol`` says what it is: an operator, a function, an axis, ``(name)``, ``(string)``, ``(number)``, or ``(``
for what stands in brackets. ``/`` and ``//`` have the path before them and a step; without a path before them they
begin at the document. What means nothing is left out: ``child::``, and ``.`` after or before a ``/``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from peerd.words import counted
from protocols.dissemination.interests.errors import InterestError

DEPTH_MAX: Final = 16
"""Brackets in brackets."""
SHOWN_MAX: Final = 20
"""Characters of a query that an error shows."""

COMPARISONS: Final = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
"""Each with the one that means the same with its sides exchanged."""
FUNCTIONS: Final = {
    **dict.fromkeys(["last", "position", "true", "false"], (0, 0)),
    **dict.fromkeys(["count", "sum", "id", "boolean", "not", "lang", "floor", "ceiling", "round"], (1, 1)),
    **dict.fromkeys(["local-name", "namespace-uri", "name", "string", "string-length"], (0, 1)),
    **dict.fromkeys(["normalize-space", "number"], (0, 1)),
    **dict.fromkeys(["starts-with", "contains", "substring-before", "substring-after"], (2, 2)),
    "substring": (2, 3),
    "translate": (3, 3),
    "concat": (2, 256),
}
"""All functions of XPath 1.0, with the fewest and the most arguments that they take."""
OF_NODES: Final = frozenset(["count", "sum", "local-name", "namespace-uri", "name"])
"""Functions whose arguments are paths."""
AXES: Final = frozenset(
    {
        *["child", "descendant", "parent", "ancestor", "self", "descendant-or-self", "ancestor-or-self"],
        *["following-sibling", "preceding-sibling", "following", "preceding", "attribute", "namespace"],
    }
)
NODE_TYPES: Final = frozenset(["node", "text", "comment", "processing-instruction"])
_OPERATORS: Final = ("or",), ("and",), ("=", "!="), ("<", "<=", ">", ">="), ("+", "-"), ("*", "div", "mod")
"""Those of two sides, the loosest first; all group from the left."""

_START: Final = "A-Z_a-z\xc0-\xd6\xd8-\xf6\xf8-\u02ff\u0370-\u037d\u037f-\u1fff\u200c\u200d\u2070-\u218f\u2c00-\u2fef"
_START_MORE: Final = "\u3001-\ud7ff\uf900-\ufdcf\ufdf0-\ufffd\U00010000-\U000effff"
_NAME: Final = rf"[{_START}{_START_MORE}][{_START}{_START_MORE}.0-9\xb7\u0300-\u036f\u203f\u2040-]*"
_SIGN: Final = re.compile(
    rf"""(?P<space>[ \t\r\n]+) | (?P<string>"[^"]*"|'[^']*') | (?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)
    | (?P<name>{_NAME}(?::(?!:)(?:{_NAME}|\*))?) | (?P<sign>//|::|\.\.|!=|<=|>=|[()\[\].@,/|+=<>*$-])""",
    re.VERBOSE,
)
_FOREIGN: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_BEFORE_OPERANDS: Final = frozenset(["", "@", "::", "(", "[", ",", "and", "or", "mod", "div", "$"])
_SIGNS_BEFORE_OPERANDS: Final = frozenset(["*", "/", "//", "|", "+", "-", *COMPARISONS])


@dataclass(frozen=True, slots=True)
class QueryToken:
    """A part of a query. ``value``: what was written, of names and constants; of a text: its characters."""

    symbol: str
    parts: tuple[QueryToken, ...] = ()
    value: str = ""

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, number: int) -> QueryToken:
        return self.parts[number]

    def __iter__(self) -> Iterator[QueryToken]:
        return iter(self.parts)


ROOT: Final = QueryToken("/")
"""The document."""
SELF: Final = QueryToken(".")


@dataclass(frozen=True, slots=True)
class _Sign:
    """What the text is made of. ``kind``: string, number, name, sign, ``operator`` (also and, or, div, mod), end."""

    kind: str
    text: str
    at: int


def parse(text: str) -> QueryToken:
    """Read a query. Raises `InterestError`, which says what is wrong, and where."""
    return _Parser(list(_signs(text))).whole()


def _signs(text: str) -> Iterator[_Sign]:
    if (foreign := _FOREIGN.search(text)) is not None:
        raise _wrong(foreign.start(), f"{foreign[0]!r} is no character that XML has")
    at, before, is_operand_next = 0, "", True
    while at < len(text):
        found = _SIGN.match(text, at)
        if found is None:
            raise _wrong(at, f"{text[at : at + SHOWN_MAX]!r} begins with nothing that a query has")
        kind, sign = str(found.lastgroup), found[0]
        if kind != "space":
            is_word = kind == "name" and sign in ("and", "or", "mod", "div") and not is_operand_next
            is_sign = kind == "sign" and sign in _SIGNS_BEFORE_OPERANDS
            if sign == "*" and is_operand_next:
                is_sign, kind = False, "name"
            if is_word or is_sign:
                kind = "operator"
            yield _Sign(kind, sign, at)
            before = sign
            is_operand_next = kind == "operator" or (kind == "sign" and before in _BEFORE_OPERANDS)
        at = found.end()
    yield _Sign("end", "", len(text))


def _wrong(at: int, what: str) -> InterestError:
    return InterestError(f"no valid XPath 1.0: at character {at + 1}: {what}")


class _Parser:
    """Reads one query, by recursive descent; the depth of that is limited by `DEPTH_MAX`."""

    def __init__(self, signs: list[_Sign]) -> None:
        self._signs, self._next, self._depth = signs, 0, 0

    def whole(self) -> QueryToken:
        """The whole query."""
        token = self._expression()
        if self._sign.kind != "end":
            raise self._unexpected("the end, or an operator")
        return token

    @property
    def _sign(self) -> _Sign:
        return self._signs[self._next]

    def _take(self) -> _Sign:
        sign = self._sign
        self._next += sign.kind != "end"
        return sign

    def _is(self, *texts: str) -> bool:
        return self._sign.text in texts and self._sign.kind in ("sign", "operator")

    def _expect(self, text: str) -> None:
        if not self._is(text):
            raise self._unexpected(repr(text))
        self._take()

    def _unexpected(self, expected: str) -> InterestError:
        sign = self._sign
        shown = "the query ends" if sign.kind == "end" else f"there is {sign.text[:SHOWN_MAX]!r}"
        return _wrong(sign.at, f"{expected} was expected, and {shown}")

    def _inside(self, closing: str, read: Callable[[], QueryToken]) -> QueryToken:
        """What stands in brackets; the opening one was taken."""
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise InterestError(f"the query is nested deeper than {DEPTH_MAX}")
        token = read()
        self._expect(closing)
        self._depth -= 1
        return token

    # Expressions

    def _expression(self, level: int = 0) -> QueryToken:
        if level == len(_OPERATORS):
            return self._unary()
        left = self._expression(level + 1)
        while self._sign.kind == "operator" and self._sign.text in _OPERATORS[level]:
            symbol = self._take().text
            left = QueryToken(symbol, (left, self._expression(level + 1)))
        return left

    def _unary(self) -> QueryToken:
        signs = 0
        while self._is("-"):
            self._take()
            signs += 1
        token = self._union()
        for _ in range(signs if signs < 2 else 2 - signs % 2):  # three of them mean what one does
            token = QueryToken("-", (token,))
        return token

    def _union(self) -> QueryToken:
        left = self._path()
        while self._is("|"):
            at = self._take().at
            right = self._path()
            for side in (left, right):
                self._nodes(side, at, "what stands beside |")
            left = QueryToken("|", (left, right))
        return left

    @staticmethod
    def _nodes(token: QueryToken, at: int, what: str) -> None:
        if not is_path(token):
            raise _wrong(at, f"{what} is no path")

    # Paths

    def _path(self) -> QueryToken:
        if self._is("/"):
            self._take()
            return self._steps(self._joined(ROOT, "/", self._step())) if self._is_step() else ROOT
        if self._is("//"):
            self._take()
            return self._steps(self._joined(ROOT, "//", self._step()))
        if self._is_step():
            return self._steps(self._step())
        at = self._sign.at
        token = self._primary()
        if self._is("[", "/", "//"):
            self._nodes(token, at, f"what stands before {self._sign.text}")
        return self._steps(self._predicates(token))

    def _steps(self, token: QueryToken) -> QueryToken:
        while self._is("/", "//"):
            token = self._joined(token, self._take().text, self._step())
        return token

    @staticmethod
    def _joined(path: QueryToken, symbol: str, step: QueryToken) -> QueryToken:
        if symbol == "/" and SELF in (path, step):
            return step if path == SELF else path
        if step == SELF:
            step = QueryToken("self", (QueryToken("node"),))  # which may have predicates
        return QueryToken(symbol, (step,) if path == ROOT else (path, step))

    def _is_step(self) -> bool:
        """Whether a step begins here, and not a function, a constant or something in brackets."""
        if self._sign.kind == "name":
            return self._signs[self._next + 1].text != "(" or self._sign.text in NODE_TYPES
        return self._is(".", "..", "@")

    def _step(self) -> QueryToken:
        if self._is(".", ".."):
            return QueryToken(self._take().text)
        axis = "child"
        if self._is("@"):
            self._take()
            axis = "attribute"
        elif self._sign.kind == "name" and self._signs[self._next + 1].text == "::":
            axis = self._sign.text
            if axis not in AXES:
                raise _wrong(self._sign.at, f"there is no axis {axis[:SHOWN_MAX]!r}")
            self._next += 2
        return self._predicates(_on_axis(axis, self._test()))

    def _test(self) -> QueryToken:
        if self._sign.kind != "name":
            raise self._unexpected("a name, or *")
        name = self._take().text
        if not self._is("("):
            return QueryToken("*") if name == "*" else QueryToken("(name)", (), name)
        if name not in NODE_TYPES:
            raise _wrong(self._sign.at, f"{name[:SHOWN_MAX]}() is no test of a node")
        self._take()
        target = (self._literal(),) if name == "processing-instruction" and self._sign.kind == "string" else ()
        self._expect(")")
        return QueryToken(name, target)

    def _predicates(self, token: QueryToken) -> QueryToken:
        while self._is("["):
            self._take()
            token = QueryToken("[", (token, self._inside("]", self._expression)))
        return token

    # What paths and calculations begin with

    def _primary(self) -> QueryToken:
        if self._sign.kind == "string":
            return self._literal()
        if self._sign.kind == "number":
            return QueryToken("(number)", (), self._take().text)
        if self._sign.kind == "name":
            return self._function()
        if self._is("("):
            self._take()
            return QueryToken("(", (self._inside(")", self._expression),))
        if self._is("$"):
            self._take()
            if self._sign.kind != "name":
                raise self._unexpected("the name of a variable")
            return QueryToken("$", (), self._take().text)
        raise self._unexpected("a path, a constant or a function")

    def _literal(self) -> QueryToken:
        return QueryToken("(string)", (), self._take().text[1:-1])

    def _function(self) -> QueryToken:
        sign = self._take()
        if sign.text not in FUNCTIONS:
            raise _wrong(sign.at, f"XPath 1.0 has no function {sign.text[:SHOWN_MAX]!r}")
        self._expect("(")
        token = self._inside(")", lambda: QueryToken(sign.text, tuple(self._arguments())))
        fewest, most = FUNCTIONS[sign.text]
        if not fewest <= len(token) <= most:
            number = str(fewest) if fewest == most else f"{fewest} to {most}"
            raise _wrong(sign.at, f"{sign.text}() has {counted(len(token), 'argument')}, and takes {number}")
        if sign.text in OF_NODES:
            for each in token:
                self._nodes(each, sign.at, f"what {sign.text}() is asked of")
        return token

    def _arguments(self) -> Iterator[QueryToken]:
        if self._is(")"):
            return
        yield self._expression()
        while self._is(","):
            self._take()
            yield self._expression()


def _on_axis(axis: str, test: QueryToken) -> QueryToken:
    if axis == "child":
        return test
    if test.symbol == "node" and axis in ("self", "parent"):
        return QueryToken(axis, (test,))
    return QueryToken("@" if axis == "attribute" else axis, (test,))


def is_path(token: QueryToken) -> bool:
    """Whether this finds nodes, and is no number, text or truth value: those have no steps and no conditions."""
    if token.symbol == "(":
        return is_path(token[0])
    is_product = token.symbol == "*" and len(token) == 2
    is_operator = token.symbol in ("and", "or", "+", "-", "div", "mod") or token.symbol in COMPARISONS
    is_function = token.symbol in FUNCTIONS and token.symbol != "id"
    return not (is_product or is_operator or is_function or token.symbol in ("(string)", "(number)"))


# Back to a text


def write(token: QueryToken) -> str:
    """The text of a token; read again, it is the same token."""
    symbol, parts = token.symbol, token.parts
    if symbol == "(name)":
        return token.value
    if symbol == "(number)":
        return token.value
    if symbol == "(string)":
        return f'"{token.value}"' if "'" in token.value else f"'{token.value}'"
    if symbol == "$":
        return "$" + token.value
    if symbol in ("/", "//"):
        return (write(parts[0]) if len(parts) == 2 else "") + symbol + (write(parts[-1]) if parts else "")
    if symbol == "[":
        return f"{write(parts[0])}[{write(parts[1])}]"
    if symbol == "(":
        return f"({write(parts[0])})"
    if symbol in FUNCTIONS or symbol in NODE_TYPES:
        return f"{symbol}({', '.join(map(write, parts))})"
    if symbol == "@":
        return "@" + write(parts[0])
    if symbol in AXES:
        return f"{symbol}::{write(parts[0])}"
    if len(parts) == 2:
        return f"{write(parts[0])} {symbol} {write(parts[1])}"
    return symbol + "".join(map(write, parts))

"""Parses the text of a filter into its tree. Errors point at the column."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from peerd.lib.filter import tree
from peerd.lib.filter.errors import FilterError, FilterTooLarge
from peerd.lib.filter.grammar import SCAN, WORDS_FOR, Dialect, grammar
from peerd.lib.filter.limits import ATOMS_MAX, DEPTH_MAX, TEXT_BYTES_MAX, TOKENS_MAX
from peerd.lib.filter.schema import Schema
from peerd.lib.filter.tree import all_of, any_of, check_atom, check_limits
from peerd.lib.filter.values import Address, Literal, Timestamp, is_unicode, parse_address, parse_timestamp

if TYPE_CHECKING:
    from lark import Lark, Token


def parse(text: str, *, schema: Schema | None = None, dialect: Dialect = Dialect.SQL) -> tree.Node:
    """The tree of a filter's text; with a schema, its literals have the types of their attributes.

    Raises `FilterError` with the column, and `FilterTooLarge` when a limit is exceeded.
    """
    check_size(text, dialect)
    import lark  # here, so that a process that never sees a filter does not load it

    builder = Builder(text, schema, dialect)
    try:
        found = _parser(dialect).parse(text)
        node = builder.node(found)
    except lark.exceptions.UnexpectedInput as error:
        raise syntax_error(text, error) from None
    try:
        return check_limits(node)
    except FilterTooLarge as error:
        raise FilterTooLarge(error.limit, error.message.removesuffix(f" ({error.limit})")) from None


@lru_cache(maxsize=len(Dialect))
def _parser(dialect: Dialect) -> Lark:
    from lark import Lark

    return Lark(grammar(dialect), parser="lalr", lexer="contextual", maybe_placeholders=True)


# --- before parsing -------------------------------------------------------------------------------------------------


def check_size(text: str, dialect: Dialect, what: str = "a filter", tokens_max: int = TOKENS_MAX) -> None:
    """Refuses what is too long, too deep or has too many parts, without building anything."""
    if len(text) > TEXT_BYTES_MAX or (not text.isascii() and is_unicode(text) and len(text.encode()) > TEXT_BYTES_MAX):
        raise FilterTooLarge("TEXT_BYTES_MAX", f"{what} has at most {TEXT_BYTES_MAX} bytes of text")
    if not is_unicode(text):
        raise FilterError(f"{what} is valid Unicode")
    depth = nots = count = connectives = 0
    for match in SCAN.finditer(text):
        count += 1
        kind = match.lastgroup
        if kind == "open":
            depth += 1
        elif kind == "close":
            depth -= 1
        elif kind == "unclosed" and (dialect is Dialect.SQL or match[kind] == '"'):  # a bare word may hold a '
            raise FilterError("a quote that is never closed", text=text, column=match.start(kind))
        word = match["word"].upper() if kind == "word" else ""
        nots = nots + 1 if word == "NOT" else nots if kind == "open" else 0
        connectives += word in ("AND", "OR")
        if depth + nots > DEPTH_MAX:
            raise FilterTooLarge(
                "DEPTH_MAX", f"{what} is nested at most {DEPTH_MAX} deep", text=text, column=match.end() - 1
            )
    if connectives > 2 * ATOMS_MAX:
        raise FilterTooLarge("ATOMS_MAX", f"{what} has at most {ATOMS_MAX} conditions")
    if count > tokens_max:
        raise FilterTooLarge("TOKENS_MAX", f"{what} has at most {tokens_max} words, values and signs, not {count}")


# --- after parsing --------------------------------------------------------------------------------------------------


class Builder:
    """Turns the trees that lark parses into nodes of a filter. A language that contains filters extends it."""

    def __init__(self, text: str, schema: Schema | None, dialect: Dialect) -> None:
        self.text = text
        self.schema = schema
        self.truth: Literal = "true" if dialect is Dialect.WORDS else True

    def node(self, found: Any) -> tree.Node:
        """Return the node that a rule's tree stands for."""
        if found.data == "disjunction":
            return any_of(map(self.node, found.children))
        if found.data == "conjunction":
            return all_of(map(self.node, found.children))
        if found.data == "negated":
            return tree.Not(self.node(found.children[1]))
        if found.data == "constant":
            return tree.Constant(found.children[0].type == "TRUE")
        if found.data == "flipped":
            value, operator, name = found.children
            return self._guarded(name.children[0], lambda token: self._flipped(self.name(token), operator, value))
        name, *rest = found.children
        negated = found.data == "exists" or any(getattr(part, "type", "") == "NOT" for part in rest)
        atom = self._guarded(name.children[0], lambda token: self._atom(found.data, self.name(token), rest))
        return tree.Not(atom) if negated else atom

    def _guarded(self, token: Token, make: Callable[[Token], tree.Atom]) -> tree.Atom:
        """The atom, checked; an error without a place gets the atom's."""
        try:
            atom = make(token)
            check_atom(atom)
            return atom if self.schema is None else self.schema.typed(atom)
        except FilterTooLarge as error:
            if error.column is not None:
                raise
            message = error.message.removesuffix(f" ({error.limit})")
            raise FilterTooLarge(error.limit, message, text=self.text, column=token.start_pos) from None
        except FilterError as error:
            if error.column is not None:
                raise
            raise FilterError(error.message, text=self.text, column=token.start_pos) from None

    def _atom(self, rule: str, name: str, rest: list[Any]) -> tree.Atom:
        given = [part for part in rest if part is not None and getattr(part, "type", "") != "NOT"]
        if rule == "comparison":
            return tree.Compare(name, _operator(given[0]), self.literal(given[1]))
        if rule == "between":
            return tree.Between(name, self.literal(given[0]), self.literal(given[1]))
        if rule == "in":
            return self._in(name, given)
        if rule == "network":
            return tree.InNetwork(name, tuple(str(self.literal(part)) for part in given))
        if rule == "like":
            escape = str(self.literal(given[1])) if len(given) > 1 else None
            return tree.Like(name, str(self.literal(given[0])), escape)
        if rule == "affix":
            where = given[0].type
            return tree.Affix(name, where if where == "CONTAINS" else f"{where} WITH", str(self.literal(given[1])))
        if rule == "matches":
            return tree.Matches(name, str(self.literal(given[0])))
        if rule in ("null", "exists"):
            return tree.IsNull(name)
        return tree.Compare(name, "=", self.truth)  # an attribute alone

    def _in(self, name: str, given: list[Any]) -> tree.Atom:
        opening, *items, closing = given
        values = tuple(map(self.literal, items))
        if opening == "(" and closing == ")":
            return tree.In(name, values)
        if len(values) != 2:
            raise FilterError(
                "a range has two ends, as in [10, 20)", text=self.text, column=cast(int, opening.start_pos)
            )
        return tree.Between(name, *values, low_closed=opening == "[", high_closed=closing == "]")

    def _flipped(self, name: str, operator: Token, value: Any) -> tree.Atom:
        """Turn a comparison round: ``5 < name`` becomes ``name > 5``."""
        written = _operator(operator)
        return tree.Compare(name, tree.FLIPPED.get(written, written), self.literal(value))

    def name(self, token: Token) -> str:
        """Read an attribute's name, with or without quotes."""
        return self._unquoted(token) if token.type == "QUOTED" else str(token)

    def literal(self, found: Any) -> Literal:
        """Read the value from a literal's token."""
        token: Token = found.children[0]
        if token.type == "NUMBER":
            return self._number(token)
        if token.type == "STRING":
            return token[1:-1].replace("''", "'")
        if token.type == "QUOTED":
            return self._unquoted(token)
        if token.type == "TYPED":
            return self._typed(token)
        return token.type == "TRUE" if token.type in ("TRUE", "FALSE") else str(token)

    def _unquoted(self, token: Token) -> str:
        """Text in double quotes, with JSON's escapes; a doubled quote is a quote, as in SQL."""
        inner = token[1:-1].replace('""', '\\"')
        try:
            return cast(str, json.loads(f'"{inner}"', strict=False))
        except ValueError:
            raise self._error("expected a quoted text with JSON's escapes", token) from None

    def _number(self, token: Token) -> Literal:
        digits = token.lstrip("+-")
        if digits.isdigit():
            if len(digits) > 400:
                raise self._error("expected a number in the range of a double", token)
            return int(token)
        value = float(token)
        if value in (float("inf"), float("-inf")):
            raise self._error("expected a number in the range of a double", token)
        return value

    def _typed(self, token: Token) -> Literal:
        kind, _, rest = token.partition("'")
        inner = rest[:-1]
        if kind.strip().upper() == "TIMESTAMP":
            nanoseconds = parse_timestamp(inner)
            if nanoseconds is None:
                raise self._error("expected a time such as TIMESTAMP '2024-01-31T12:00:00Z'", token)
            return Timestamp(nanoseconds)
        if kind.strip().upper() == "IP":
            key = parse_address(inner)
            if key is None:
                raise self._error("expected an address such as IP '10.0.0.1'", token)
            return Address(key)
        try:
            return Decimal(inner)
        except InvalidOperation:
            raise self._error("expected a number such as DECIMAL '0.10'", token) from None

    def _error(self, message: str, token: Token) -> FilterError:
        return FilterError(f"{message}, found {str(token)!r:.80}", text=self.text, column=cast(int, token.start_pos))


def _operator(token: Token) -> str:
    return "<>" if token == "!=" else str(token)


def syntax_error(text: str, error: Any, in_words: Callable[[set[str]], str] | None = None) -> FilterError:
    """What lark did not like, at its place. ``in_words``: says what a larger grammar would have accepted there."""
    column = error.pos_in_stream
    token = getattr(error, "token", None)
    at_end = token is not None and token.type == "$END"
    if column is None or at_end:
        column = len(text.rstrip())
    found = "the end" if at_end or column >= len(text) else repr(_word_at(text, column))
    accepted = getattr(error, "accepts", None) or getattr(error, "expected", None) or getattr(error, "allowed", None)
    wanted = (in_words or expected)(set(accepted or ()))
    return FilterError(f"expected {wanted}, found {found}", text=text, column=column)


def _word_at(text: str, column: int) -> str:
    match = SCAN.match(text, column)
    return match[0].strip()[:60] if match else text[column]


def expected(terminals: set[str]) -> str:
    """Say in words what the grammar would have accepted at that place."""
    if terminals & {"WORD", "ITEM"}:
        return 'a value: a number, a word or "quoted text"'
    if "OPERATOR" in terminals and "NAME" not in terminals:
        said = [words for terminal, words in WORDS_FOR.items() if terminal in terminals]
        return f"one of {' '.join(word for word in said if not word.startswith(chr(39)))}"
    if "NAME" in terminals:
        return "a field name (put unusual ones in double quotes)" if terminals <= {"NAME", "QUOTED"} else "a condition"
    if "NUMBER" in terminals:
        return "a value: a number or 'quoted text'"
    if "STRING" in terminals:
        return "'quoted text'"
    said = [words for terminal, words in WORDS_FOR.items() if terminal in terminals]
    return " or ".join([*said, *(["the end"] if "$END" in terminals else [])]) or "something else"

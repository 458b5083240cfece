"""The grammar of filters in lark's notation (LALR), for SQL and for the query language of aggregates.

The contextual lexer tries only what the parser can use next, so words such as STARTS or CIDR stay free for names of
attributes. Reserved words have to be quoted. The two dialects differ in how text is written on the right-hand side.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final


class Dialect(StrEnum):
    """The ways to write text on the right-hand side of a condition."""

    SQL = "sql"
    """``'text'``. In double quotes stands the name of an attribute."""
    WORDS = "words"
    """Also ``"text"`` with JSON's escapes and bare words: ``method = GET``. TRUE and FALSE are words there, too."""


RESERVED: Final = ("AND", "OR", "NOT", "IS", "NULL", "IN", "BETWEEN", "LIKE", "ESCAPE", "EXISTS", "TRUE", "FALSE")
_KEYWORDS: Final = (*RESERVED, "STARTS", "ENDS", "WITH", "CONTAINS", "MATCHES", "CIDR")
_NOT_NAME: Final = r"(?![\w.\-])"
BARE_NAME: Final = rf"(?!(?:{'|'.join(RESERVED)}){_NOT_NAME})[^\W\d][\w\-]*(?:\.[\w\-]+)*"
"""The form of an attribute's name that is not quoted (upper and lower case count as the same)."""
_NUMERAL: Final = r"[+\-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+\-]?[0-9]+)?"
_QUOTE: Final = r"'(?:[^']|'')*'"

_RULES: Final = r"""
?start: disjunction
disjunction: conjunction (_OR conjunction)*
conjunction: _negation (_AND _negation)*
_negation: negated | primary
negated: NOT _negation
?primary: "(" disjunction ")" | condition

?condition: constant | comparison | between | in | network | like | affix | matches | null | exists | flag
!constant: TRUE | FALSE
comparison: name OPERATOR value | left OPERATOR name -> flipped
between: name [NOT] _BETWEEN value _AND value
in: name [NOT] _IN OPEN item ("," item)* CLOSE
network: name [NOT] _IN _CIDR (text | "(" entry ("," entry)* ")")
like: name [NOT] _LIKE text [_ESCAPE text]
affix: name [NOT] (STARTS _WITH | ENDS _WITH | CONTAINS) text
matches: name [NOT] _MATCHES text
null: name _IS [NOT] _NULL
exists: _EXISTS (name | "(" name ")")
flag: name

name: NAME | QUOTED
!left: NUMBER | STRING | TYPED | TRUE | FALSE
!value: %(value)s
!item: %(item)s
!text: %(text)s
!entry: %(entry)s

OPERATOR: /<=|>=|<>|!=|=|<|>/
OPEN: /[\[(]/
CLOSE: /[\])]/
NAME: /%(name)s/i
QUOTED: /"(?:[^"\\]|\\.|"")*"/s
STRING: /%(quote)s/
NUMBER.5: /%(numeral)s(?![^\s()\[\]"'=!<>,])/
TYPED.6: /(?:TIMESTAMP|DECIMAL|IP)\s*%(quote)s/i
%(words)s
%(keywords)s
%%ignore /\s+/
"""
_VALUES: Final = "NUMBER | STRING | TYPED"
_SQL: Final = {
    "value": f"{_VALUES} | TRUE | FALSE",
    "item": f"{_VALUES} | TRUE | FALSE",
    "text": "STRING",
    "entry": "STRING",
    "words": "",
}
_WORDS: Final = {
    "value": f"{_VALUES} | QUOTED | WORD",
    "item": f"{_VALUES} | QUOTED | ITEM",
    "text": "STRING | QUOTED | WORD",
    "entry": "STRING | QUOTED | ITEM",
    "words": (
        r"""WORD: /[^\s()"=!<>'\[\],][^\s()"=!<>]*/""" + "\n" + r"""ITEM: /[^\s()"=!<>'\[\],][^\s()"=!<>,\[\]]*/"""
    ),
}


def grammar(dialect: Dialect) -> str:
    """Return the text of the grammar."""
    keywords = "\n".join(
        f"{'' if word in ('NOT', 'TRUE', 'FALSE', 'STARTS', 'ENDS', 'CONTAINS') else '_'}{word}.9: /{word}{_NOT_NAME}/i"
        for word in _KEYWORDS
    )
    parts = _SQL if dialect is Dialect.SQL else _WORDS
    return _RULES % {**parts, "name": BARE_NAME, "quote": _QUOTE, "numeral": _NUMERAL, "keywords": keywords}


SCAN: Final = re.compile(
    rf"""\s*(?:(?P<quoted>{_QUOTE}|"(?:[^"\\]|\\.|"")*")|(?P<open>\()|(?P<close>\))|(?P<unclosed>['"])|<=|>=|<>|!="""
    r"""|(?P<word>[\w.+\-/:*]+)|.)""",
    re.DOTALL,
)
"""Cuts a text into pieces, roughly: enough to refuse what is too large before it is parsed."""

WORDS_FOR: Final = {
    "OPERATOR": "= != < <= > >=",
    "_BETWEEN": "BETWEEN",
    "_IN": "IN",
    "_LIKE": "LIKE",
    "STARTS": "STARTS WITH",
    "ENDS": "ENDS WITH",
    "CONTAINS": "CONTAINS",
    "_MATCHES": "MATCHES",
    "_IS": "IS",
    "_AND": "'and'",
    "_OR": "'or'",
    "_NULL": "NULL",
    "_WITH": "WITH",
    "_ESCAPE": "ESCAPE",
    "_CIDR": "CIDR",
    "COMMA": "','",
    "RPAR": "')'",
    "CLOSE": "')' or ']'",
    "NOT": "NOT",
}
"""The words by which an error message names what the grammar expects, in the order of the message."""

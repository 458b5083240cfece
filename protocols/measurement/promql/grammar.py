"""The grammar of the subset of PromQL in lark's notation (LALR).

The contextual lexer tries only what the parser can use next, so the names of labels may be keywords. Each level of
precedence is a rule, from the loosest to the tightest, as Prometheus has them; ``^`` alone is right-associative, and a
sign binds as ``*`` does.
"""

from __future__ import annotations

import re
from typing import Final

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

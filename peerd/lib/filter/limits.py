"""The limits of a filter. Every refusal names the limit that was exceeded."""

from __future__ import annotations

from typing import Final

TEXT_BYTES_MAX: Final = 8 * 1024
"""The longest text of a filter, in bytes of UTF-8."""
TOKENS_MAX: Final = 1024
"""Most words, literals and signs in a text: with it, parsing takes a few milliseconds at most."""
DEPTH_MAX: Final = 16
"""The deepest nesting of AND, OR, NOT and parentheses."""
ATOMS_MAX: Final = 256
"""The largest number of conditions in one filter."""
NAME_BYTES_MAX: Final = 256
"""The longest name of an attribute, in bytes of UTF-8."""
STRING_CHARACTERS_MAX: Final = 1024
"""The longest text literal, in characters."""
NUMBER_CHARACTERS_MAX: Final = 64
"""The longest number, in characters as it is written."""
LIST_ITEMS_MAX: Final = 256
"""Most values of one IN list, and most networks of one IN CIDR."""
LIKE_CHARACTERS_MAX: Final = 256
"""The longest pattern of LIKE, in characters."""
LIKE_WILDCARDS_MAX: Final = 16
"""The largest number of ``%`` in one pattern of LIKE."""
REGEX_CHARACTERS_MAX: Final = 512
"""The longest pattern of MATCHES, in characters."""
REGEX_REPEAT_MAX: Final = 1000
"""Largest count in a repeat such as ``a{1000}``, nested ones multiplied (RE2's own limit)."""
REGEX_MEMORY_BYTES_MAX: Final = 256 * 1024
"""Most memory that RE2 may use for one compiled pattern."""
CONJUNCTS_MAX: Final = 64
"""The largest number of alternatives in a normal form."""
CONJUNCT_ATOMS_MAX: Final = 32
"""The largest number of conditions in one alternative of a normal form."""
NORMAL_STEPS_MAX: Final = 512
"""Most combinations that are looked at while a normal form is made."""

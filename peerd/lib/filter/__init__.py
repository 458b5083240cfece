"""Filters: one language for subscriptions, queries and tags, with covering, routing ranges and a matching index.

docs/filters.md is for users. Importing this package loads neither lark nor RE2 nor numpy: each comes when it is first
used.
"""

from __future__ import annotations

from peerd.lib.filter.errors import FilterError, FilterTooLarge
from peerd.lib.filter.evaluate import Explanation, Matcher, explain, matcher, truth
from peerd.lib.filter.grammar import Dialect
from peerd.lib.filter.index import FilterIndex
from peerd.lib.filter.json_forms import JsonForm, from_json, to_json
from peerd.lib.filter.normal import Conjunct, Mark, NormalForm, mark_of, normal_form
from peerd.lib.filter.parse import parse
from peerd.lib.filter.relations import covers, covers_form, overlaps, overlaps_form
from peerd.lib.filter.schema import Schema
from peerd.lib.filter.selectivity import Histogram, selectivity
from peerd.lib.filter.tree import Node, check_limits, names
from peerd.lib.filter.write import write

__all__ = [
    "Conjunct",
    "Dialect",
    "Explanation",
    "FilterError",
    "FilterIndex",
    "FilterTooLarge",
    "Histogram",
    "JsonForm",
    "Mark",
    "Matcher",
    "Node",
    "NormalForm",
    "Schema",
    "check_limits",
    "covers",
    "covers_form",
    "explain",
    "from_json",
    "mark_of",
    "matcher",
    "names",
    "normal_form",
    "overlaps",
    "overlaps_form",
    "parse",
    "selectivity",
    "to_json",
    "truth",
    "write",
]

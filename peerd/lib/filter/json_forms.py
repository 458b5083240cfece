"""Filters from JSON and back: an object is a filter policy, a list is CloudEvents' filters, a text is the language."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from peerd.lib.filter.errors import FilterError
from peerd.lib.filter.json_cloudevents import from_cloudevents, to_cloudevents
from peerd.lib.filter.json_policy import from_policy, to_policy
from peerd.lib.filter.parse import parse
from peerd.lib.filter.tree import Node
from peerd.lib.filter.write import write


class JsonForm(StrEnum):
    """The forms in which a filter can be written in JSON."""

    TEXT = "text"
    POLICY = "policy"
    CLOUDEVENTS = "cloudevents"


def from_json(document: object) -> Node:
    """Read a filter from a JSON document. Raises `FilterError`."""
    if isinstance(document, str):
        return parse(document)
    if isinstance(document, list):
        return from_cloudevents(document)
    if isinstance(document, Mapping):
        return from_policy(document)
    raise FilterError(f"a filter in JSON is a text, an object (policy) or a list (CloudEvents), not {document!r:.60}")


def to_json(node: Node, form: JsonForm = JsonForm.CLOUDEVENTS) -> Any:
    """The filter in a form; ``from_json`` gives one that matches the same events. POLICY may raise `FilterError`."""
    if form is JsonForm.POLICY:
        return to_policy(node)
    return to_cloudevents(node) if form is JsonForm.CLOUDEVENTS else write(node)

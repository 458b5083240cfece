"""MQTT topics as attributes of events, and MQTT's topic filters as filters on these attributes. Pure.

A *pattern* says which level of a topic is which attribute: ``stocks/{symbol}/{kind}``. ``{name...}`` as the last level
is the rest of the topic, with its slashes. Section numbers are those of the MQTT 5 standard.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from peerd.errors import PeerdError
from peerd.lib.filter import FilterError, parse, write
from peerd.lib.filter.write import write_name, write_text
from peerd.limits import NAME_LENGTH_MAX

SELECTOR: Final = "$filter"
"""``$filter/SELECTOR/TOPIC FILTER`` adds a filter in peerd's language, encoded as in a URL."""
SHARED: Final = "$share/"
"""``$share/GROUP/TOPIC FILTER``: each message goes to one of the clients with this group and this topic filter."""
GROUP_MAX: Final = NAME_LENGTH_MAX
TOPIC_BYTES_MAX: Final = 1024
LEVELS_MAX: Final = 64
TYPES: Final = frozenset({"string", "int"})
"""The types that a level of a topic may have: those that have exactly one text for each value."""
_PART: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_.-]*?)(\.\.\.)?\}")


class TopicError(PeerdError, ValueError):
    """A topic, topic filter or pattern that cannot be used here; the text says why."""


@dataclass(frozen=True, slots=True)
class Level:
    """One level of a pattern: a text that has to be there, or an attribute."""

    text: str = ""
    attribute: str = ""
    is_rest: bool = False


class TopicMap:
    """Maps topics to attributes and back. ``types`` are those of the schema's attributes."""

    def __init__(self, pattern: str, types: Mapping[str, str]) -> None:
        self._levels = _levels(pattern)
        self._types = types
        self.attributes = [level.attribute for level in self._levels if level.attribute]
        for name in self.attributes:
            if name not in types:
                raise TopicError(f"the schema has no attribute {name}, which the pattern {pattern} names")
            if types[name] not in TYPES or (types[name] != "string" and self._levels[-1] == Level("", name, True)):
                raise TopicError(f"{name} is {types[name]}; a level of a topic is string or int, the rest of it string")

    def values_of(self, topic: str) -> dict[str, Any]:
        """Return the attributes that a topic gives. Raises `TopicError`."""
        check_topic(topic)
        texts = topic.split("/")
        if self._levels[-1].is_rest and len(texts) >= len(self._levels):
            last = len(self._levels) - 1
            texts = [*texts[:last], "/".join(texts[last:])]
        if len(texts) != len(self._levels):
            raise TopicError(f"the topic {topic!r:.80} has not the levels of the pattern")
        values: dict[str, Any] = {}
        for level, text in zip(self._levels, texts, strict=True):
            if level.attribute:
                values[level.attribute] = self._value(level.attribute, text)
            elif level.text != text:
                raise TopicError(f"the topic {topic!r:.80} has {text!r:.40} where the pattern has {level.text!r}")
        return values

    def topic_of(self, values: Mapping[str, Any]) -> str | None:
        """Make the topic again; ``None`` if an attribute of it is missing, or cannot stand in a topic."""
        texts = []
        for level in self._levels:
            text = str(values.get(level.attribute, "+")) if level.attribute else level.text
            if "/" in text and not level.is_rest:
                return None
            texts.append(text)
        topic = "/".join(texts)
        try:
            check_topic(topic)
        except TopicError:
            return None
        return topic

    def filter_of(self, topic_filter: str) -> str:
        """Return what a topic filter asks for, as text in peerd's language. Raises `TopicError`."""
        selector, wanted = _selector_of(topic_filter)
        conditions = self._conditions(checked_levels(wanted))
        if selector:
            conditions.append(f"({selector})")
        return " AND ".join(conditions) or "TRUE"

    def _conditions(self, wanted: Sequence[str]) -> list[str]:
        conditions: list[str] = []
        for index, level in enumerate(self._levels):
            if index < len(wanted) and level.is_rest:
                return [*conditions, *_rest_condition(level.attribute, wanted[index:])]
            if index < len(wanted) and wanted[index] == "#":
                return conditions
            if index >= len(wanted):
                raise TopicError("the topic filter has fewer levels than the pattern, so it would never match")
            if wanted[index] != "+":
                conditions += self._condition(level, wanted[index])
        if len(wanted) > len(self._levels) and list(wanted[len(self._levels) :]) != ["#"]:
            raise TopicError("the topic filter has more levels than the pattern, so it would never match")
        return conditions

    def _condition(self, level: Level, text: str) -> list[str]:
        if not level.attribute:
            if text != level.text:
                raise TopicError(f"the pattern has {level.text!r} where the topic filter has {text!r:.40}")
            return []
        value = self._value(level.attribute, text)
        return [f"{write_name(level.attribute)} = {value if isinstance(value, int) else write_text(value)}"]

    def _value(self, attribute: str, text: str) -> str | int:
        if self._types[attribute] == "string":
            return text
        if re.fullmatch(r"0|-?[1-9][0-9]{0,18}", text, re.ASCII):
            return int(text)
        raise TopicError(f"{attribute} is a whole number, not {text!r:.40}")


def shared(topic_filter: str) -> tuple[str, str]:
    """The group of a shared subscription, and its topic filter; no group for others (section 4.8.2).

    Raises `TopicError`.
    """
    if not topic_filter.startswith(SHARED):
        return "", topic_filter
    group, _, rest = topic_filter.removeprefix(SHARED).partition("/")
    if not 0 < len(group.encode()) <= GROUP_MAX or any(character in group for character in "+#") or not rest:
        raise TopicError(f"a shared subscription is $share/GROUP/TOPIC FILTER, GROUP at most {GROUP_MAX} bytes")
    return group, rest


def check_topic(topic: str) -> None:
    """Raise `TopicError` for what no event may have as its topic (section 4.7)."""
    if any(character in topic for character in "+#\0"):
        raise TopicError("a topic has no +, # or NUL in it")
    if topic.startswith("$"):
        raise TopicError("topics that begin with $ are the server's own")
    _check_size(topic)


def _check_size(text: str) -> None:
    if not 0 < len(text.encode(errors="replace")) <= TOPIC_BYTES_MAX or text.count("/") >= LEVELS_MAX:
        raise TopicError(f"topics have 1 to {TOPIC_BYTES_MAX} bytes and at most {LEVELS_MAX} levels")


def _levels(pattern: str) -> list[Level]:
    _check_size(pattern)
    levels = []
    for part in pattern.split("/"):
        found = _PART.fullmatch(part)
        if found is None and any(character in part for character in "{}+#"):
            raise TopicError(
                f"{part!r:.60} is no level of a pattern: a text, {{attribute}}, or {{attribute...}} at the end"
            )
        levels.append(Level(part) if found is None else Level("", found[1], found[2] is not None))
    names = [level.attribute for level in levels if level.attribute]
    if not names or len(set(names)) < len(names):
        raise TopicError("a pattern names at least one attribute, and each only once")
    if any(level.is_rest for level in levels[:-1]):
        raise TopicError("{attribute...} is the last level of a pattern")
    return levels


def _selector_of(topic_filter: str) -> tuple[str, str]:
    if not topic_filter.startswith(f"{SELECTOR}/"):
        return "", topic_filter
    _, selector, *rest = topic_filter.split("/", 2)
    try:
        text = unquote(selector, errors="strict")
        return write(parse(text)) if text.strip() else "", rest[0] if rest else "#"
    except (UnicodeDecodeError, FilterError) as error:
        raise TopicError(f"the selector is no filter: {error}") from error


def checked_levels(wanted: str) -> list[str]:
    """The levels of a topic filter: a wildcard stands alone in its level, and ``#`` at the end (section 4.7.1)."""
    _check_size(wanted)
    levels = wanted.split("/")
    is_alone = all(text in ("+", "#") or not ("+" in text or "#" in text) for text in levels)
    if not is_alone or "#" in levels[:-1] or "\0" in wanted:
        raise TopicError(f"{wanted!r:.80} is no topic filter")
    return levels


def _rest_condition(attribute: str, wanted: Sequence[str]) -> list[str]:
    """The condition on an attribute that holds all levels from here on."""
    name, has_hash = write_name(attribute), wanted[-1] == "#"
    fixed = wanted[:-1] if has_hash else wanted
    if not fixed:
        return []
    if "+" not in fixed:
        text = "/".join(fixed)
        exact = f"{name} = {write_text(text)}"
        return [f"({exact} OR {name} STARTS WITH {write_text(text + '/')})" if has_hash else exact]
    shape = "/".join("[^/]*" if text == "+" else re.escape(text) for text in fixed)
    return [f"{name} MATCHES {write_text(shape + ('(/.*)?' if has_hash else ''))}"]

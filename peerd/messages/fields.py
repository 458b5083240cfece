"""What a field of a message may be, and the limits that `msgspec.Meta` does not know. Others use `peerd.messages`."""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec

from peerd.errors import Bug

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

_PLAIN = frozenset((int, bool, str, bytes))


@dataclass(frozen=True)
class BytesMax:
    """A limit for texts: the most bytes that one has in UTF-8.

    `msgspec.Meta` counts characters, of which each may have four bytes, while the caps of messages are bytes. Models of
    pydantic have it as well.
    """

    most: int

    def check(self, text: str, name: str = "") -> str:
        """Return the text. Raises `ValueError`, which names it, if it is longer."""
        if 4 * len(text) > self.most and len(text if text.isascii() else text.encode()) > self.most:
            raise ValueError(f"{name}: a text of more than {self.most} bytes".removeprefix(": "))
        return text

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(self.check, handler(source))


def check_of_texts(cls: type) -> Callable[[Any], None] | None:
    """What a struct does when it is made, besides what it says itself: refuse texts over their `BytesMax`. ``None``: it
    has no such texts."""
    texts = [(name, rule.check) for name, hint in _hints(cls) for rule in _rules(hint) if isinstance(rule, BytesMax)]
    if not texts:
        return None
    own: Callable[[Any], None] | None = vars(cls).get("__post_init__")

    def check(self: Any) -> None:
        for name, check in texts:
            check(getattr(self, name), name)
        if own is not None:
            own(self)

    return check


def check_fields(cls: type, packed: Collection[type]) -> None:
    """Raise `Bug` for a field of a type that does not travel. ``packed``: types that travel as bytes.

    What is not plainly one of ours would be decoded by msgspec in its own way, or a limit would be passed over.
    """
    for name, hint in _hints(cls):
        try:
            _check(hint, packed)
        except Bug as error:
            raise Bug(f"{cls.__name__}.{name}: {error}") from None


@cache
def _hints(cls: type) -> list[tuple[str, Any]]:
    """The fields' types. `typing.get_type_hints` takes six times as long, for every message of a daemon that starts."""
    hints: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        for name, hint in inspect.get_annotations(base).items():
            hints[name] = eval(_code(hint), vars(sys.modules[base.__module__])) if isinstance(hint, str) else hint
    return [(name, hint) for name, hint in hints.items() if typing.get_origin(hint) is not ClassVar]


@cache
def _code(hint: str) -> types.CodeType:
    return compile(hint, "<hint>", "eval")


def _rules(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint)[1:] if typing.get_origin(hint) is Annotated else ()


def _check(hint: Any, packed: Collection[type], *, is_field: bool = True) -> None:
    rules = _rules(hint)
    inner = typing.get_args(hint)[0] if rules else hint
    origin, arguments = typing.get_origin(inner), typing.get_args(inner)
    for rule in rules:
        if not (isinstance(rule, msgspec.Meta) or (isinstance(rule, BytesMax) and inner is str and is_field)):
            raise Bug(f"the limit {rule!r} does not count here; see peerd.messages")
    if inner is float:
        if not any(_is_finite(rule) for rule in rules):
            raise Bug("a float needs a limit on both sides; see peerd.messages.Finite")
    elif origin is tuple and arguments[1:] == (...,):
        _check(arguments[0], packed, is_field=False)
    elif origin in (types.UnionType, typing.Union) and len(arguments) == 2 and types.NoneType in arguments:
        _check(arguments[arguments[0] is types.NoneType], packed, is_field=False)
    elif isinstance(inner, type) and issubclass(inner, msgspec.Struct):
        check_fields(inner, packed)
    elif inner not in _PLAIN and inner not in packed:
        raise Bug(f"{inner!r} is not a wire type; see peerd.messages")


def _is_finite(rule: Any) -> bool:
    low, high = (rule.ge, rule.gt), (rule.le, rule.lt)
    return any(bound is not None for bound in low) and any(bound is not None for bound in high)

"""Handlers and timers: how the methods are marked, and how a plugin of several parts brings those of its parts.

Plugins import it from `peerd.api`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

from peerd.errors import Bug
from peerd.frozen import Frozen
from peerd.messages import Message, PeerRef


class HistorySize(Frozen):
    """Something that is remembered of the past, and what it takes: ``bytes`` now, by measured sizes, and at most."""

    name: str
    """For operators: "events taken", say."""
    entries: int
    bytes: int
    bytes_max: int


Handler = Callable[[Any, PeerRef], Message | None]
"""A bound `@handles` method: it gets the message and who sent it, and what it returns answers a request."""
TimerHandler = Callable[[Any], None]
"""A bound `@on_timer` method: it gets the payload that the timer was armed with."""

_HANDLES = "_peerd_handles"
_TIMERS = "_peerd_timers"
F = TypeVar("F", bound=Callable[..., Any])


def handles(*message_types: type[Message]) -> Callable[[F], F]:
    """Mark a method ``(self, message, source: PeerRef) -> Message | None`` as the handler of message types.

    It gets messages sent, routed or broadcast to this node. What it returns answers a request (nothing: the request
    times out); a one-way sender never sees it. A message type that the plugin lists but that nothing handles is told to
    its sender as unknown.
    """

    def mark(function: F) -> F:
        setattr(function, _HANDLES, message_types)
        return function

    return mark


def on_timer(name: str) -> Callable[[F], F]:
    """Mark a method ``(self, payload)`` as what runs when the timer ``name`` fires."""

    def mark(function: F) -> F:
        setattr(function, _TIMERS, name)
        return function

    return mark


class Part:
    """A piece of a plugin with `@handles` and `@on_timer` methods of its own.

    It has no host, no configuration and no upcalls but what its constructor is given; `Plugin.add_parts` makes its
    methods the plugin's. A plugin of one class needs none.
    """

    message_handlers: ClassVar[Mapping[type[Message], str]] = {}
    """The name of the method for each message type."""
    timer_handlers: ClassVar[Mapping[str, str]] = {}
    """The name of the method for each timer."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        by_message: dict[type[Message], str] = {}
        by_timer: dict[str, str] = {}
        for owner in reversed(cls.__mro__):  # so that a subclass may handle what its base handles, too
            marked = [
                (attribute, getattr(member, _HANDLES, ()), getattr(member, _TIMERS, None))
                for attribute, member in vars(owner).items()
            ]
            by_message |= _each_once(owner, [(kind, attribute) for attribute, kinds, _ in marked for kind in kinds])
            by_timer |= _each_once(owner, [(timer, attribute) for attribute, _, timer in marked if timer is not None])
        cls.message_handlers, cls.timer_handlers = by_message, by_timer


K = TypeVar("K", str, type[Message])


def _each_once(owner: type, found: list[tuple[K, str]]) -> dict[K, str]:
    """Return the marks of one class. Raises `Bug` when two of its methods are marked for the same thing."""
    names: dict[K, str] = {}
    for key, attribute in found:
        if key in names:
            raise _twice(key, f"{owner.__qualname__}.{names[key]}", f"{owner.__qualname__}.{attribute}")
        names[key] = attribute
    return names


def _twice(key: str | type[Message], first: str, second: str) -> Bug:
    what = f"the timer {key!r}" if isinstance(key, str) else key.__name__
    return Bug(f"{first} and {second} both handle {what}")


class HandlerTable:
    """The bound handlers of one running plugin: its own methods, and those of its parts."""

    def __init__(self) -> None:
        self.messages: dict[type[Message], Handler] = {}
        self.timers: dict[str, TimerHandler] = {}

    def add(self, part: Part) -> None:
        """Take in the methods of a part. Raises `Bug`, naming both, for a second handler of one message or timer."""
        for kind, attribute in part.message_handlers.items():
            _enter(self.messages, kind, getattr(part, attribute))
        for timer, attribute in part.timer_handlers.items():
            _enter(self.timers, timer, getattr(part, attribute))


def _enter(table: dict[K, Callable[..., Any]], key: K, method: Callable[..., Any]) -> None:
    if key in table:
        raise _twice(key, _name(table[key]), _name(method))
    table[key] = method


def _name(method: Callable[..., Any]) -> str:
    return getattr(method, "__qualname__", repr(method))

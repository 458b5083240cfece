"""How the record store reaches plugins: only those that override an upcall, and none that is out of service."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, cast

import pytest

from peerd.api import Plugin, RecordRole
from peerd.errors import Bug, ProtocolError
from peerd.ids import NodeId
from peerd.services.records.upcalls import RecordUpcalls

KEY, WRITER = NodeId(1), NodeId(2)


class Indifferent(Plugin):
    """Overrides nothing."""

    name: ClassVar[str] = "indifferent"


class Interested(Plugin):
    """Overrides everything, and notes what it is told."""

    name: ClassVar[str] = "interested"
    takes_owned_records: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Any] = []
        self.answer: Callable[[], bool] = lambda: True

    def record_changed(self, key: NodeId, role: RecordRole, item: bytes) -> None:
        """Note it."""
        self.told.append((key, role, item))

    def record_allowed(self, key: NodeId, item: bytes, value: bytes | None, writer: NodeId) -> bool:
        """Note it, and answer as the test says."""
        self.told.append((key, item, value, writer))
        return self.answer()

    def records_settled(self) -> None:
        """Note it."""
        self.told.append("settled")


class Node:
    """As much of a node as these tests need; it is a clock, too."""

    def __init__(self, *plugins: Plugin) -> None:
        self.disabled: set[str] = set()
        self.later: list[Callable[[], None]] = []
        self.ran: list[str] = []
        run = cast(Any, self._run)
        by_name = {plugin.name: plugin for plugin in plugins}
        self.upcalls = RecordUpcalls(self.call_soon, by_name, self.disabled.__contains__, run, run)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.later.append(callback)

    def _run(self, plugin: str, function: Callable[..., Any], *arguments: Any) -> Any:
        self.ran.append(plugin)
        return function(*arguments)

    def settle(self) -> None:
        """What was to come after the handler."""
        for callback in self.later:
            callback()
        self.later.clear()


def test_who_does_not_care_is_not_called_and_allows_everything() -> None:
    node = Node(Indifferent())
    node.upcalls.changed("indifferent", KEY, RecordRole.ROOT, b"")
    node.upcalls.settled()
    assert node.upcalls.is_allowed("indifferent", KEY, b"", b"x", WRITER)
    assert node.upcalls.is_allowed("somewhere else", KEY, b"", b"x", WRITER), "a node without the plugin holds it"
    assert node.upcalls.has_plugin("indifferent") and not node.upcalls.has_plugin("somewhere else")
    assert node.upcalls.takes_owned("indifferent") and node.upcalls.takes_owned("somewhere else")
    node.settle()
    assert node.ran == []


def test_who_is_told_is_told_after_the_handler_and_who_is_asked_at_once() -> None:
    plugin = Interested()
    node = Node(Indifferent(), plugin)
    node.upcalls.changed("interested", KEY, RecordRole.REPLICA, b"i")
    node.upcalls.settled()
    assert plugin.told == [] and not node.upcalls.takes_owned("interested")
    assert node.upcalls.is_allowed("interested", KEY, b"i", None, WRITER)
    assert plugin.told == [(KEY, b"i", None, WRITER)]
    node.settle()
    assert plugin.told[1:] == [(KEY, RecordRole.REPLICA, b"i"), "settled"]
    assert node.ran == ["interested"] * 3


def test_a_refusal_an_accusation_and_an_absence_are_refusals_and_a_bug_is_a_bug() -> None:
    plugin = Interested()
    node = Node(plugin)

    def raises(error: Exception) -> Callable[[], bool]:
        def answer() -> bool:
            raise error

        return answer

    for answer in (lambda: False, raises(ProtocolError("bad_value", "no value of mine"))):
        plugin.answer = answer
        assert not node.upcalls.is_allowed("interested", KEY, b"", b"x", WRITER)
    plugin.answer = raises(Bug("mine"))
    with pytest.raises(Bug):
        node.upcalls.is_allowed("interested", KEY, b"", b"x", WRITER)
    plugin.answer = lambda: True
    node.disabled.add("interested")
    assert not node.upcalls.is_allowed("interested", KEY, b"", b"x", WRITER)
    node.disabled.clear()
    assert node.upcalls.is_allowed("interested", KEY, b"", b"x", WRITER)

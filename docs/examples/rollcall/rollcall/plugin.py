"""The plugin: turns events into calls of the algorithm, and its results into calls of the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final

from peerd.api import Host, Metric, Plugin, PluginConfig, handles, on_timer
from peerd.errors import Unavailable
from peerd.lib.feed import Feed
from peerd.messages import PeerRef
from rollcall.config import RollCallConfig
from rollcall.events import Answered, Finished
from rollcall.messages import Call, Present
from rollcall.roll import Answer, Roll

CALLS_MAX: Final = 16
"""Calls of this node that wait for answers at a time."""
ANSWER_BYTES: Final = 200
"""What an answer counts in the feed."""


class RollCall(Plugin):
    """Broadcasts a call and collects the answers."""

    name = "rollcall"
    messages = (Call, Present)
    events = (Answered, Finished)
    metrics = (Metric("peerd_rollcall_answers_total", "counter", "Answers to roll calls that were received."),)
    Config: ClassVar[type[PluginConfig]] = RollCallConfig
    config: RollCallConfig

    def start(self, host: Host) -> None:
        super().start(host)
        self.label = self.config.label
        self.heard: Feed[Answer] = Feed(host.new_epoch())
        host.when_over(self.heard.end)
        self.last: Roll | None = None
        self._started_s = host.now()
        self._calls: dict[int, tuple[Roll, Callable[[Roll], None]]] = {}

    def call(self, finished: Callable[[Roll], None]) -> int:
        """Ask everybody; ``finished`` gets the roll. Returns the call's number. Raises `Unavailable`."""
        if len(self._calls) >= CALLS_MAX:
            raise Unavailable(f"{CALLS_MAX} roll calls are under way; try again when one has ended")
        number = self.host.rng.getrandbits(32)
        leaf_set = self.host.leaf_set()
        expected = len(leaf_set.members()) + 1 if leaf_set.covers_ring else None
        self._calls[number] = (Roll(number, expected, self.host.now()), finished)
        self.host.set_timer("call_due", self.config.patience, number)
        self.host.broadcast(Call(number))
        return number

    def rename(self, label: str) -> None:
        """What this node says of itself from now on."""
        self.label = label

    @handles(Call)
    def on_call(self, call: Call, source: PeerRef) -> None:
        self.host.send(source, Present(call.number, self.host.now() - self._started_s, self.label))
        self.host.emit(Answered(call=call.number))

    @handles(Present)
    def on_present(self, present: Present, source: PeerRef) -> None:
        answer = Answer(source.id, present.uptime_s, present.label)
        if present.number in self._calls and self._calls[present.number][0].add(answer, self.host.now()):
            self.heard.push(answer, ANSWER_BYTES)
            self.host.count("peerd_rollcall_answers_total")

    @on_timer("call_due")
    def call_due(self, number: int) -> None:
        roll, finished = self._calls.pop(number)
        self.last = roll
        answers = len(roll.answers)
        self.host.emit(Finished(call=number, answers=answers, expected=roll.expected, duration_s=roll.duration_s))
        finished(roll)

    def validate(self) -> None:
        assert len(self._calls) <= CALLS_MAX

"""Roll call: which nodes are there, and since when? A whole plugin; docs/writing-a-plugin.md walks through it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, ClassVar

from peerd.api import Host, Metric, Plugin, PluginConfig, handles, on_timer
from peerd.ids import NodeId
from peerd.messages import U32, Message, PeerRef, message
from peerd.quantities import Duration, between_durations, setting


@message(0x7F41, bytes_max=64)
class Call(Message):
    """To every node: who is there?"""

    number: U32


@message(0x7F42, bytes_max=64)
class Present(Message):
    """To the caller: I am, since ``uptime_s`` seconds."""

    number: U32
    uptime_s: float


class RollCallConfig(PluginConfig):
    """How long a caller waits."""

    patience: Annotated[Duration, between_durations("10ms", "1h")] = setting("2s", "Time for answers to come in.")


class RollCall(Plugin):
    """Broadcasts a call and collects the answers."""

    name = "rollcall"
    messages = (Call, Present)
    metrics = (Metric("peerd_rollcall_answers_total", "counter", "Answers to roll calls that were received."),)
    Config: ClassVar[type[PluginConfig]] = RollCallConfig
    config: RollCallConfig

    def start(self, host: Host) -> None:
        super().start(host)
        self._started_at = host.now()
        self._calls: dict[int, tuple[dict[NodeId, float], Callable[[dict[NodeId, float]], None]]] = {}

    def call(self, finished: Callable[[dict[NodeId, float]], None]) -> None:
        """Ask everybody; ``finished`` gets the uptime in seconds by node id."""
        number = self.host.rng.getrandbits(32)
        self._calls[number] = ({}, finished)
        self.host.set_timer("call_due", self.config.patience, number)
        self.host.broadcast(Call(number))

    @handles(Call)
    def on_call(self, call: Call, source: PeerRef) -> None:
        self.host.send(source, Present(call.number, self.host.now() - self._started_at))

    @handles(Present)
    def on_present(self, present: Present, source: PeerRef) -> None:
        if present.number in self._calls:
            self._calls[present.number][0][source.id] = present.uptime_s
            self.host.count("peerd_rollcall_answers_total")

    @on_timer("call_due")
    def call_due(self, number: int) -> None:
        answers, finished = self._calls.pop(number)
        finished(answers)

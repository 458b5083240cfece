"""A ring of simulated nodes that pass messages on: ``python -m bench.simulated NODES``, commands as `bench.peer`."""

from __future__ import annotations

import gc
import heapq
import json
import os
import random
import sys
import time
from dataclasses import dataclass
from typing import Any, Final

from bench.processes import resident_mb
from bench.workload import MESSAGES, MakeMessage, Probe, Token, token
from peerd.api import Host, Plugin, handles
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from peerd.sim.churn import Churn, ChurnSettings
from peerd.sim.simulation import Simulation
from peerd.wire.codec import decode, encode
from peerd.wire.frames import Frame

SEED: Final = 1
SPACING_S: Final = 0.1
READY_LIMIT_S: Final = 300.0
TOKENS_PER_NODE: Final = 4
STEP_S: Final = 0.1


@dataclass
class Workload:
    """The kind of message that all couriers send; one object for all of them."""

    make: MakeMessage = token


class Courier(Plugin):
    """For each message that it gets, sends one of its own to the next member of its leaf set."""

    name = "courier"
    messages = (Token, Probe)
    workload: Workload

    def start(self, host: Host) -> None:
        """Begin without a peer to send to."""
        super().start(host)
        self._targets: tuple[PeerRef, ...] = ()
        self._number = 0

    def begin(self) -> None:
        """Send the first ones."""
        self._targets = self.host.leaf_set().members()
        for _ in range(TOKENS_PER_NODE):
            self._send()

    def _send(self) -> None:
        self._number += 1
        self.host.send(self._targets[self._number % len(self._targets)], self.workload.make(self.host.id, self._number))

    @handles(Token, Probe)
    def on_message(self, message: Message, source: PeerRef) -> None:
        """Pass it on."""
        self._send()


class Worker:
    """Carries out commands."""

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes
        self._workload = Workload()
        self._simulation = Simulation(SEED, plugins=lambda index: [self._courier()])

    def _courier(self) -> Courier:
        courier = Courier()
        courier.workload = self._workload
        return courier

    def form(self) -> dict[str, Any]:
        """Form the ring; memory and time that it took. ``cpu_s`` is the processor's, which others disturb less."""
        gc.collect()
        before_mb = resident_mb(os.getpid())
        began, cpu = time.perf_counter(), time.process_time()
        simulation = self._simulation
        simulation.start(self._nodes, spacing_s=SPACING_S)
        simulation.run_for(SPACING_S * self._nodes)
        simulation.run_until(simulation.is_ready, limit_s=READY_LIMIT_S)
        duration_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
        gc.collect()
        return {
            "node_kib": (resident_mb(os.getpid()) - before_mb) * 1024 / self._nodes,
            "duration_s": duration_s,
            "cpu_s": cpu_s,
            "messages": simulation.network.frames_delivered,
            "events": simulation.engine.events,
        }

    def churn(self, duration_s: float, session_median_s: float) -> dict[str, Any]:
        """Have nodes come and go for so long, virtual seconds."""
        simulation = self._simulation
        first, first_event, cpu = simulation.network.frames_delivered, simulation.engine.events, time.process_time()
        Churn(simulation, ChurnSettings(session_median_s=session_median_s)).start()
        simulation.run_for(duration_s)
        return {
            "cpu_s": time.process_time() - cpu,
            "messages": simulation.network.frames_delivered - first,
            "events": simulation.engine.events - first_event,
        }

    def ring(self) -> dict[str, Any]:
        """Form the ring, and have everybody send."""
        formed, simulation = self.form(), self._simulation
        for place in simulation.nodes:
            courier = place.node.plugins["courier"]
            assert isinstance(courier, Courier)
            courier.begin()
        simulation.run_for(1.0)
        return formed

    def deliver(self, kind: str, messages: int) -> dict[str, Any]:
        """Run until so many more messages were delivered, the overlay's own among them."""
        simulation = self._simulation
        if self._workload.make is not MESSAGES[kind]:
            self._workload.make = MESSAGES[kind]
            simulation.run_for(1.0)  # those of the other kind arrive and are replaced
        first = simulation.network.frames_delivered
        began = time.perf_counter()
        while (delivered := simulation.network.frames_delivered - first) < messages:
            simulation.run_for(STEP_S)
        return {"messages": delivered, "duration_s": time.perf_counter() - began}

    def bare(self, kind: str, messages: int) -> dict[str, Any]:
        """Measure the least that such a simulation must do: the same message through a heap, with as many under way."""
        make, rng = MESSAGES[kind], random.Random(SEED)
        sender = NodeId(rng.getrandbits(128))
        under_way = TOKENS_PER_NODE * self._nodes
        heap: list[tuple[float, int, Frame]] = [
            (rng.random(), number, encode(make(sender, number))) for number in range(under_way)
        ]
        heapq.heapify(heap)
        began = time.perf_counter()
        for sequence in range(under_way, under_way + messages):
            now, _, frame = heapq.heappop(heap)
            decoded = decode(frame)
            assert decoded is not None
            heapq.heappush(heap, (now + rng.random(), sequence, encode(make(sender, sequence))))
        return {"messages": messages, "duration_s": time.perf_counter() - began}


def main() -> None:
    """Answer commands until there are no more."""
    worker = Worker(int(sys.argv[1]))
    for line in sys.stdin:
        arguments = json.loads(line)
        answer = getattr(worker, arguments.pop("command"))(**arguments)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

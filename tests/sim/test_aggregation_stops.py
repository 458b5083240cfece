"""A partner that stops in the middle of a round, at each of its messages and writes: everybody else's data is in."""

from __future__ import annotations

from typing import Any

import pytest

from peerd.sim.simulation import Place, Simulation
from peerd.sim.streams import SimStream
from tests.support.aggregation import Round, aggregation_ring, check_answer

NODES = 8
REQUESTER, STOPPING = 0, 5
STEPS_MAX = 400


def watched(monkeypatch: pytest.MonkeyPatch, place: Place, step: int, stop: Any) -> list[str]:
    """What the node sends, from now on; ``stop`` is called when it has sent so much."""
    sent: list[str] = []
    driver = place.driver
    send, enqueue = driver.send, SimStream._enqueue

    def note(what: str) -> None:
        sent.append(what)
        if len(sent) == step:
            stop()

    def sending(peer: Any, frame: Any, priority: Any) -> None:
        note(f"frame {frame[0]:#06x}")
        send(peer, frame, priority)

    def writing(self: SimStream, piece: Any) -> None:
        if self._driver is driver:
            note(f"{piece[1]} bytes")
        enqueue(self, piece)

    monkeypatch.setattr(driver, "send", sending)
    monkeypatch.setattr(SimStream, "_enqueue", writing)
    return sent


def ring(padding_bytes: int) -> Simulation:
    return aggregation_ring(NODES, 11, padding_bytes=padding_bytes)


@pytest.mark.parametrize("how", ["kill", "silence"])
@pytest.mark.parametrize("padding_bytes", [0, 3_000_000], ids=["small", "large"])
def test_a_partner_stops_at_each_message_of_a_round(how: str, padding_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as calm:
        simulation = ring(padding_bytes)
        steps = watched(calm, simulation.nodes[STOPPING], 0, None)
        Round(simulation, REQUESTER).answer()
    assert 5 < len(steps) < STEPS_MAX
    if padding_bytes:
        assert any(what.endswith(" bytes") for what in steps)
    for step in range(1, len(steps) + 1):
        with pytest.MonkeyPatch.context() as patch:
            simulation = ring(padding_bytes)
            stopping = simulation.nodes[STOPPING]
            fail = simulation.kill if how == "kill" else simulation.silence

            def stop(simulation: Simulation = simulation, stopping: Place = stopping, fail: Any = fail) -> None:
                simulation.after(0.0, lambda: fail(stopping))

            watched(patch, stopping, step, stop)
            answer = Round(simulation, REQUESTER).answer()
        assert not stopping.is_live, f"it did not stop at step {step}"
        check_answer(simulation, answer)
        absent = {place.id for place in simulation.nodes} - set(answer.contributor_ids)
        assert absent <= {stopping.id}, f"step {step} of {len(steps)}: {steps[step - 1]}"

"""The checker that sees what waits for a child that would take it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from protocols.dissemination.front import checkers
from protocols.dissemination.front.checkers import TAKEN_AGAIN_S, SiblingsFlow


def test_what_waits_for_a_child_that_takes_more_is_seen_after_a_while_and_counted_anew_when_it_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    child = SimpleNamespace(outbox=["an item"], peer=SimpleNamespace(id=7), attempt=1)
    member = SimpleNamespace(down=SimpleNamespace(children={7: child}))
    node = SimpleNamespace(name="news", record=SimpleNamespace(key=1), member=member, is_slow=lambda peer: False)
    monkeypatch.setattr(checkers, "streams_of", lambda place: [node])
    simulation: Any = SimpleNamespace(now=0.0, truth=SimpleNamespace(paused=set()))
    place: Any = SimpleNamespace(index=0, boot_epoch=1)
    checker = SiblingsFlow()

    def look(at: float) -> list[str]:
        simulation.now = at
        return checker.check_node(simulation, place)

    assert not look(0.0) and not look(0.9 * TAKEN_AGAIN_S)
    assert "would take what waits" in look(TAKEN_AGAIN_S)[0]
    member.down.children = {}
    assert not look(2 * TAKEN_AGAIN_S)
    member.down.children = {7: child}
    assert not look(3 * TAKEN_AGAIN_S), "it has just come back"
    child.attempt = 2
    assert not look(4 * TAKEN_AGAIN_S), "it has come back between two looks"
    assert look(5 * TAKEN_AGAIN_S)

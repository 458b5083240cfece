"""What a ring says of how good the values are that its subscriptions hold, beside what is so."""

from __future__ import annotations

import json
from typing import Any

import pytest

from peerd.testing.simulation import ring
from protocols.dissemination.config import DisseminationConfig
from protocols.dissemination.front.judging import plugin_of
from protocols.dissemination.models import StreamSpec, StreamSubscriptionRequest
from protocols.dissemination.plugin import Dissemination
from protocols.dissemination.ports import ParsedItem
from protocols.dissemination.subscriptions import StreamSubscription
from tests.support.sinks import ListSink

NODES, CHANGES, GAP_S = 5, 150, 1.0
LATE_CLOCK_S = 0.001
"""Times of publication are whole milliseconds."""


def test_the_event_log_says_for_how_long_values_were_out_of_date(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = ListSink()
    config = DisseminationConfig(fan_out=1)
    simulation = ring(NODES, 3, plugins=lambda index: [Dissemination(config)], sink=sink)
    producer = simulation.nodes[0]
    published: dict[int, float] = {}
    outdated: list[float] = []
    deliver = StreamSubscription.deliver

    def noted(subscription: StreamSubscription, what: Any) -> None:
        if isinstance(what, ParsedItem) and what.position.sequence > 1:
            outdated.append(simulation.now - published[what.position.sequence])
        deliver(subscription, what)

    monkeypatch.setattr(StreamSubscription, "deliver", noted)
    plugin_of(producer).changes.create(
        StreamSpec(name="prices", kind="coherency", policy="first_fit"), lambda answer: None
    )
    simulation.run_for(3.0)
    told: list[Any] = []
    for place in simulation.nodes[1:]:
        wish = StreamSubscriptionRequest(stream="prices", interest="a WITHIN 0.5", name="kept")
        plugin_of(place).subscribing.subscribe(wish, told.append)
        simulation.run_for(3.0)
    begun = simulation.now
    for number in range(1, CHANGES + 1):
        published[number] = simulation.now
        plugin_of(producer).publishers.publish("prices", json.dumps({"object": "a", "value": number}).encode(), "")
        simulation.run_for(GAP_S)
    until = simulation.now
    simulation.run_for(70.0)  # the minute's line of each node
    loads: list[dict[str, Any]] = sink.of_kind("dissemination.load")
    assert len(outdated) == (NODES - 1) * (CHANGES - 1), "each change came to each subscription"
    said_s, held_s = (sum(load[name] for load in loads) for name in ("outdated_s", "held_s"))
    assert said_s == pytest.approx(sum(outdated), abs=LATE_CLOCK_S * len(outdated))
    assert (NODES - 1) * (until - begun - 60.0) < held_s < (NODES - 1) * (until - begun + 70.0)
    assert 0.9 < 1 - said_s / held_s < 0.999
    last = [plugin_of(place).nodes for place in simulation.nodes[1:]]
    assert all(0.9 < next(iter(nodes)).figures()["fidelity"] < 1 for nodes in last)

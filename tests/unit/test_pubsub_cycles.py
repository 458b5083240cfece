"""Events leave no reference cycles behind: a daemon looks for them rarely (`peerd.daemon.service.GC_THRESHOLDS`)."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

from protocols.pubsub.messages import DeliveryAnswer, EventDelivery
from protocols.pubsub.names import EVERY
from protocols.pubsub.tree.cells import WHOLE
from tests.support.pubsub_leaf import BrokerRig, event, sub
from tests.unit.test_pubsub_publishing import World

EVENTS = 200


def at_a_publisher() -> Callable[[int], None]:
    world = World(attributes=3)

    def step(number: int) -> None:
        [published] = world.publish()
        world.answer([published], *((attribute, WHOLE) for attribute in range(EVERY, 4)))
        world.host.take_sent()
        assert len(world.plugin.outcomes) == number

    return step


def at_a_leaf() -> Callable[[int], None]:
    rig = BrokerRig()
    rig.leaves.subs = [sub(5, 1), sub(6, 1)]

    def step(number: int) -> None:
        rig.arrive(event(number))
        for request in list(rig.host.requests):
            assert isinstance(request.message, EventDelivery)
            rig.host.requests.remove(request)
            request.on_reply(DeliveryAnswer(request.message.number), request.peer)
        rig.host.take_sent()
        assert rig.ledger.delivered_count == 2 * number

    return step


@pytest.mark.parametrize("place", [at_a_publisher, at_a_leaf])
def test_events_leave_no_reference_cycles_behind(place: Callable[[], Callable[[int], None]]) -> None:
    step = place()
    step(1)
    gc.collect()
    gc.disable()
    try:
        for number in range(2, EVENTS):
            step(number)
        assert gc.collect() < EVENTS // 2, "not one object an event"
    finally:
        gc.enable()

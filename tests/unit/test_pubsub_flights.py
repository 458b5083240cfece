"""Several batches of one publisher on their way to a leaf: which set out, and what happens when one is lost."""

from __future__ import annotations

from protocols.pubsub.messages import ProbePub
from protocols.pubsub.publishing.event import EventDraft
from protocols.pubsub.publishing.lanes import CALM_S, FLIGHTS_MAX, QUICK_S
from protocols.pubsub.publishing.publisher import UNDER_WAY_MAX
from tests.unit.test_pubsub_publishing import ROOT, World


def begun(world: World, took_s: float = 0.1) -> list[ProbePub]:
    """Publish together as much as may be under way to a leaf that is known; what has set out. ``took_s``: how long it
    takes to answer."""
    [first] = world.publish()
    world.host.take_sent()
    world.wait(took_s)
    world.answer([first], ROOT)
    publishing, outcomes = world.plugin.publishing, world.plugin.outcomes
    for _ in range(UNDER_WAY_MAX):
        publishing.enqueue(world.schema, EventDraft({}), None, outcomes.append)
    publishing.set_out()
    return probes(world)


def probes(world: World) -> list[ProbePub]:
    """The messages that have set out since the last call."""
    return [message for _, message in world.host.take_sent() if isinstance(message, ProbePub)]


def test_large_batches_set_out_to_a_leaf_before_the_first_is_answered_and_each_names_the_event_before_it() -> None:
    world = World()
    sent = begun(world)
    numbers = [[event.sequence for event in message.events] for message in sent]
    assert len(sent) == FLIGHTS_MAX
    assert [number for batch in numbers for number in batch] == list(range(2, 2 + UNDER_WAY_MAX))
    assert [message.after for message in sent] == [0, *(batch[-1] for batch in numbers[:-1])]
    assert all(message.attempt == 0 and message.remembered for message in sent)
    for batch in numbers:
        world.answer(batch, ROOT)
    assert [number for number, _ in world.ended] == list(range(1, numbers[-1][-1] + 1))


def test_one_batch_at_a_time_goes_to_leaves_that_are_slow() -> None:
    assert len(begun(World(publish_retry=60.0), took_s=2 * QUICK_S)) == 1


def test_what_a_leaf_does_not_take_yet_is_sent_again_from_the_lost_event_on() -> None:
    world = World()
    first, second, *_ = begun(world)
    world.answer([each.sequence for each in second.events], ROOT, failed="not yet", retry_ms=100, matched=())
    world.wait(0.11)
    [again] = probes(world)
    assert (again.events, again.after, again.attempt) == (first.events, 0, 1)
    assert not world.sent(), "one batch at a time, until the leaf answers"
    world.answer([each.sequence for each in again.events], ROOT)
    [later] = probes(world)
    assert (later.events, later.after) == (second.events, 0)
    world.answer([each.sequence for each in later.events], ROOT)
    assert len(probes(world)) == 1
    world.wait(CALM_S)
    assert len(begun(world)) > 1, "not for long"


def test_whoever_says_that_a_leaf_takes_nothing_yet_can_have_it_sent_again_only_once() -> None:
    world = World()
    sent = begun(world)
    for _ in range(5):
        for message in sent:
            world.answer([each.sequence for each in message.events], ROOT, failed="no", retry_ms=1, matched=())
        world.wait(0.05)
    assert [message.attempt for message in probes(world)] == [1]

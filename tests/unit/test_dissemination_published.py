"""What the swarm's judge takes for current, and for lost with good reason."""

from __future__ import annotations

import pytest

from protocols.dissemination.config import DisseminationConfig
from protocols.dissemination.front.published import PublishedStream
from protocols.dissemination.models import StreamSpec
from protocols.dissemination.names import StreamPosition, epoch_of

CONFIG = DisseminationConfig.model_validate({"replay_items": 10, "replay_for": "1m"})
FIRST, RESTARTED, HANDED_OVER = epoch_of(0, 1), epoch_of(0, 2), epoch_of(1, 1)


def published(epoch: int, *, count: int = 3, durable: bool = False, is_whole: bool = False) -> PublishedStream:
    """A stream of some items of one epoch, and some of another one."""
    stream = PublishedStream(StreamSpec(name="s", kind="classes", policy="first_fit", durable=durable))
    for number in range(1, 4):
        stream.add(StreamPosition(FIRST, number), "a", b"old", 0.0)
    stream.begins(epoch, is_whole=is_whole)
    for number in range(1, count + 1):
        stream.add(StreamPosition(epoch, number), "b", b"new", 1.0)
    return stream


def may_lack(stream: PublishedStream, now: float = 2.0) -> bool:
    """Whether the last item of the first epoch may be called lost, in a gap up to the first one of the next."""
    lost = StreamPosition(FIRST, 3)
    return stream.may_lack(lost, StreamPosition(FIRST, 2), StreamPosition(stream.newest_epoch, 0), CONFIG, now)


@pytest.mark.parametrize(
    ("stream", "is_right"),
    [
        (published(RESTARTED), True),
        (published(RESTARTED, durable=True), False),
        (published(HANDED_OVER, is_whole=True), False),
        (published(HANDED_OVER, is_whole=True, durable=True), False),
        (published(epoch_of(2, 1), durable=True), True),
        (published(HANDED_OVER, is_whole=True, count=10), True),
    ],
    ids=["forgotten", "durable", "handed over", "both", "taken back", "outrun"],
)
def test_what_may_be_called_lost(stream: PublishedStream, is_right: bool) -> None:
    assert may_lack(stream) == is_right


@pytest.mark.parametrize("sequence", [2, 3])
def test_what_is_on_the_disk_of_who_was_the_producer_before_may_be_called_lost(sequence: int) -> None:
    """Seed 104 of the swarm was red once: of a durable stream, up to the hand-over, where the new one was restarted."""
    stream, last = published(HANDED_OVER, is_whole=True, durable=True), StreamPosition(FIRST, 3)
    since, until = StreamPosition(FIRST, 0), StreamPosition(FIRST, sequence)
    assert not stream.may_lack(until, since, until, CONFIG, 2.0)
    stream.epochs.add(epoch_of(1, 2))
    assert stream.may_lack(until, since, until, CONFIG, 2.0) == (until == last)
    assert stream.may_lack(until, since, StreamPosition(HANDED_OVER, 2), CONFIG, 2.0)
    assert not stream.may_lack(StreamPosition(HANDED_OVER, 1), since, StreamPosition(HANDED_OVER, 1), CONFIG, 2.0)


def test_what_is_too_old_may_be_called_lost() -> None:
    stream = published(HANDED_OVER, is_whole=True)
    assert not may_lack(stream, now=59.0) and may_lack(stream, now=61.0)


def test_a_loss_may_be_as_large_as_what_is_let_go_of_at_once() -> None:
    stream = published(FIRST + 0, count=0)
    for number in range(4, 14):
        stream.add(StreamPosition(FIRST, number), "a", b"a", 0.0)
    last = stream.last
    assert stream.may_lack(last, StreamPosition(FIRST, 3), last, CONFIG, 1.0)
    assert not stream.may_lack(last, StreamPosition(FIRST, 4), last, CONFIG, 1.0)


@pytest.mark.parametrize(("is_whole", "current"), [(True, ["old"]), (False, [])])
def test_values_stay_current_when_a_stream_is_handed_over(is_whole: bool, current: list[str]) -> None:
    """Seed 34 of the swarm was red once: what was current just before did not count."""
    assert published(HANDED_OVER, is_whole=is_whole).in_force("a") == current


def test_while_the_first_value_is_on_its_way_none_is_asked_for() -> None:
    """Seed 282 of the swarm was red once: half a second after the first value of an object somebody had none."""
    stream = published(HANDED_OVER, is_whole=True, count=3)
    assert stream.in_force("b", behind=2) == ["new", "new", "new"]
    assert stream.in_force("b", behind=3) == []
    assert stream.in_force("a", behind=3) == ["old"]


def test_no_value_stays_current_over_a_restart_in_which_nothing_was_published() -> None:
    """Seeds 830 and 885: the restarted producer was seen, and has handed over, or has not published yet."""
    stream = published(HANDED_OVER, is_whole=True)
    stream.epochs.add(RESTARTED)
    assert (stream.in_force("a"), stream.in_force("b")) == ([], ["new"])
    stream.epochs.add(epoch_of(3, 1))
    assert stream.in_force("b") == []


def test_what_a_producer_publishes_that_another_has_followed_is_disputed() -> None:
    stream = published(HANDED_OVER, is_whole=True)
    late = StreamPosition(FIRST, 4)
    stream.add(late, "a", b"late", 2.0)
    assert stream.positions == sorted(stream.positions)
    assert late not in [at for at, _ in stream.due(StreamPosition(FIRST, 0), stream.last)]
    assert stream.last.epoch == HANDED_OVER

"""Durable streams on a simulated ring: producers that lose their power, are replaced, or have a full disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from peerd.errors import Unavailable
from peerd.sim.driver import SimStore
from peerd.sim.logs import LogOnDisk
from protocols.dissemination.documents.manifest import Attachment
from protocols.dissemination.front.judging import WatchedStream, plugin_of
from protocols.dissemination.models import StreamView
from protocols.dissemination.names import START, stream_key
from tests.sim.test_dissemination import SPEC, Streams

DURABLE = SPEC.model_copy(update={"durable": True})
KEY = stream_key("news")


def lose_power(streams: Streams, away_s: float = 5.0) -> None:
    """The producer dies at once, and comes back."""
    streams.simulation.kill(streams.producer)
    streams.simulation.run_for(away_s)
    streams.simulation.restart(streams.producer)
    back(streams)


def back(streams: Streams) -> None:
    def is_back() -> bool:
        place = streams.producer
        return place.is_live and place.node.is_ready and plugin_of(place).nodes.get(KEY) is not None

    streams.simulation.run_until(is_back, limit_s=90.0)


def told_gaps(watched: list[WatchedStream]) -> int:
    views = [
        view for each in watched for view in plugin_of(each.place).subscribing.subscriptions() if view.id == each.id
    ]
    return sum(view.missed_gaps for view in views)


def full_disk(monkeypatch: pytest.MonkeyPatch, streams: Streams, *, also_deleting: bool) -> None:
    """The producer's disk takes nothing more."""
    store = plugin_of(streams.producer).host.store
    disks = {id(disk) for store in streams.producer.driver._stores.values() for disk in store.logs.values()}
    write = LogOnDisk.write

    def no_write(self: LogOnDisk, records: Any, first: int, done: Callable[[], None], failed: Any) -> None:
        if id(self._disk) in disks:
            self._later(0.001, lambda: failed(OSError("No space left on device")))
        else:
            write(self, records, first, done, failed)

    monkeypatch.setattr(LogOnDisk, "write", no_write)
    monkeypatch.setattr(store, "put", _refuse)
    if also_deleting:
        monkeypatch.setattr(store, "delete", _refuse)


@pytest.mark.parametrize("seed", range(4))
def test_a_producer_that_loses_its_power_loses_nothing_that_was_kept(seed: int) -> None:
    streams = Streams(12, seed, DURABLE)
    watched = streams.subscribe_all()
    for _ in range(3):
        streams.publish(30, 0.003)  # the last ones are on their way to the disk
        lose_power(streams)
    streams.publish(20, 0.003)
    streams.settle(20.0)
    streams.assert_complete()
    assert told_gaps(watched) == 0
    assert len(streams.judge.streams["news"].doubtful) < 20, "the disk takes some milliseconds"
    assert len({position.epoch for position in streams.judge.streams["news"].positions}) == 4


def test_those_who_come_late_or_were_away_have_what_came_before_the_restart() -> None:
    streams = Streams(8, 0, DURABLE)
    streams.publish(40, 0.01)
    streams.settle(1.0)
    lose_power(streams)
    middle = streams.judge.streams["news"].positions[19]
    late = streams.subscribe(streams.others[0], "a,b,c,d", "start")
    resumed = streams.subscribe(streams.others[1], "a,b,c,d", f"{middle.epoch}-{middle.sequence}")
    streams.publish(10)
    streams.settle()
    streams.assert_complete()
    assert (late.received, resumed.received, told_gaps([late, resumed])) == (50, 30, 0)


def test_an_item_has_its_document_also_after_a_restart() -> None:
    streams = Streams(4, 0, DURABLE)
    attached = Attachment("disk.img", 1000, 256 * 1024, b"d" * 32, "x/y")
    plugin_of(streams.producer).publishers.publish("news", b"a item", attachment=attached)
    streams.settle(1.0)
    lose_power(streams)
    node = plugin_of(streams.producer).nodes.get(KEY)
    assert node is not None and node.keeping is not None and node.keeping.is_kept
    assert [item.attachment for item in node.member.state.buffer.after(START)] == [attached]


def test_an_idle_stream_has_no_gap_after_a_restart_also_before_its_first_item() -> None:
    streams = Streams(6, 0, DURABLE, replay_for="20s")
    watched = streams.subscribe_all()
    lose_power(streams)
    streams.publish(10)
    streams.settle(60.0)  # by now nobody remembers them
    lose_power(streams)
    streams.publish(10)
    streams.settle(20.0)
    streams.assert_complete()
    assert told_gaps(watched) == 0


def test_the_log_holds_what_the_stream_remembers_and_little_more() -> None:
    streams = Streams(4, 0, DURABLE, replay_items=200)
    watched = streams.subscribe_all()
    streams.publish(1500, 0.004)
    streams.settle()
    (disk,) = [disk for store in streams.producer.driver._stores.values() for disk in store.logs.values()]
    assert 200 <= len(disk.records) <= 200 * 4 // 3 + 100
    lose_power(streams)
    node = plugin_of(streams.producer).nodes.get(KEY)
    assert node is not None and len(node.member.state.buffer) == 200
    late = streams.subscribe(streams.others[0], "a,b,c,d", "1-1300")
    streams.settle()
    streams.assert_complete()
    assert (late.received, told_gaps(watched)) == (200, 0)


def test_a_plugin_that_replaces_a_failed_one_has_its_past() -> None:
    streams = Streams(6, 0, DURABLE)
    watched = streams.subscribe_all()
    streams.publish(20, 0.002)
    streams.producer.node.restart_plugin("dissemination")
    back(streams)
    streams.publish(20)
    streams.settle(20.0)
    streams.assert_complete()
    assert told_gaps(watched) == 0
    assert len(set(streams.judge.streams["news"].positions)) == 40


@pytest.mark.parametrize("also_deleting", [False, True])
def test_a_full_disk_is_told_and_the_stream_goes_on_without_it(
    monkeypatch: pytest.MonkeyPatch, also_deleting: bool
) -> None:
    streams = Streams(8, 0, DURABLE)
    watched = streams.subscribe_all()
    streams.publish(20)
    with monkeypatch.context() as patch:
        full_disk(patch, streams, also_deleting=also_deleting)
        streams.publish(20)
        streams.settle()
        streams.assert_complete()
        assert told_gaps(watched) == 0
        assert streams.judge.streams["news"].doubtful == set()
        node = plugin_of(streams.producer).nodes.get(KEY)
        assert node is not None and node.keeping is not None and not node.keeping.is_kept
        streams.simulation.kill(streams.producer)  # what went out without the disk is not there after this
    streams.simulation.run_for(5.0)
    streams.simulation.restart(streams.producer)
    back(streams)
    streams.settle(20.0)
    streams.publish(20)
    streams.settle()
    streams.assert_complete()
    assert told_gaps(watched) == len(watched), "a past with a hole in it is none, and that is told"


def test_a_log_that_could_not_be_removed_does_not_count_after_two_restarts_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streams = Streams(8, 0, DURABLE)
    watched = streams.subscribe_all()
    streams.publish(20)
    stores = {id(store) for store in streams.producer.driver._stores.values()}
    delete = SimStore.delete

    def no_delete(self: SimStore, key: str) -> None:
        if id(self) in stores:
            raise Unavailable("No space left on device")
        delete(self, key)

    with monkeypatch.context() as patch:
        full_disk(patch, streams, also_deleting=True)
        patch.setattr(SimStore, "delete", no_delete)
        streams.publish(5)
        lose_power(streams)
        streams.publish(20)
        streams.settle(20.0)
        streams.simulation.kill(streams.producer)
    streams.simulation.run_for(5.0)
    streams.simulation.restart(streams.producer)
    back(streams)
    streams.publish(20)
    streams.settle(20.0)
    streams.assert_complete()
    assert told_gaps(watched) == 2 * len(watched)


def test_a_disk_that_has_room_again_keeps_the_stream_again(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = Streams(8, 0, DURABLE)
    watched = streams.subscribe_all()
    with monkeypatch.context() as patch:
        full_disk(patch, streams, also_deleting=True)
        streams.publish(20)
        streams.settle()
    streams.settle(10.0)
    streams.publish(20)
    lose_power(streams)
    streams.publish(20)
    streams.settle(20.0)
    streams.assert_complete()
    assert told_gaps(watched) == 0


def test_who_waits_for_the_disk_is_told_when_the_plugin_is_replaced() -> None:
    streams = Streams(4, 0, DURABLE)
    told: list[bool | Exception] = []
    plugin = plugin_of(streams.producer)
    plugin.publishers.publish("news", b"a")
    plugin.publishers.when_kept("news", told.append)
    streams.producer.node.restart_plugin("dissemination")
    assert len(told) == 1 and isinstance(told[0], Unavailable)


def test_a_stream_that_is_removed_leaves_nothing_on_the_disk() -> None:
    streams = Streams(4, 0, DURABLE)
    watched = streams.subscribe_all()
    streams.publish(5, 0.0)
    told: list[StreamView | Exception] = []
    plugin_of(streams.producer).changes.remove("news", told.append)
    streams.settle()
    wanted = [sum(each.matches(name) for name in streams.judge.streams["news"].classes) for each in watched]
    assert [each.received for each in watched] == wanted, "what waited for the disk has gone out"
    stores = streams.producer.driver._stores["dissemination"]
    assert stores.keys() == [] and not any(disk.records for disk in stores.logs.values())


def test_a_disk_that_refuses_from_the_beginning_refuses_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = Streams(4)
    plugin = plugin_of(streams.producer)
    monkeypatch.setattr("peerd.lib.group_log.GroupLog.append", _refuse)
    told: list[StreamView | Exception] = []
    with pytest.raises(Unavailable, match="no room"):
        plugin.changes.create(DURABLE.model_copy(update={"name": "other"}), told.append)
    assert plugin.nodes.get(stream_key("other")) is None


def _refuse(*arguments: Any) -> Any:
    raise Unavailable("no room")

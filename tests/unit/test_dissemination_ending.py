"""Ending a stream, where something comes in between: another producer, or a disk that refuses."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from peerd.errors import Unavailable
from peerd.ids import NodeId
from peerd.messages import PeerRef
from protocols.dissemination.config import DisseminationConfig
from protocols.dissemination.models import StreamSpec
from protocols.dissemination.producer.changes import Endings
from protocols.dissemination.producer.succession import Succession
from protocols.dissemination.service import StreamRefused
from protocols.dissemination.stream import StreamRecord
from protocols.dissemination.stream_node import DRAIN_S
from protocols.dissemination.streams import Streams

ONE, OTHER = (PeerRef(NodeId(number << 120), f"10.0.0.{number}", 7420) for number in (1, 2))
SPEC = StreamSpec(name="news", kind="classes", policy="first_fit")


class Rig:
    """A producer with one stream, whose child does not take what was published. Everything around it only notes."""

    def __init__(self) -> None:
        record = StreamRecord.of(SPEC, ONE)
        self.node: Any = SimpleNamespace(
            name="news", record=record, is_producer=True, why_paused="", has_sent_all=lambda: False
        )
        self.host: Any = SimpleNamespace(time_s=0.0, now=lambda: self.host.time_s, peer=ONE)
        self.done: list[str] = []
        self.removed: Callable[[Exception | None], None] = lambda why: None
        self.disk: Unavailable | None = None
        self.nodes: Any = SimpleNamespace(
            get=lambda key: self.node if key == record.key else None,
            give_up=lambda node, reason: self.done.append(f"given up: {reason}"),
            is_own=lambda record: record.producer.peer == ONE,
        )
        self.registry: Any = SimpleNamespace(
            lease_s=lambda record: 600.0,
            remove=self._remove,
            forget=lambda record: self.done.append("renewed no more"),
            withdraw=lambda record: self.done.append("withdrawn"),
        )
        self.produced: Any = SimpleNamespace(forget=self._forget)
        around = {"host": self.host, "nodes": self.nodes, "registry": self.registry, "produced": self.produced}
        self.streams = cast(Streams, SimpleNamespace(config=DisseminationConfig, **around))
        self.endings = Endings(self.streams, lambda node: self.done.append("released"))
        self.told: list[Exception | None] = []

    def _remove(self, record: StreamRecord, on_done: Callable[[Exception | None], None]) -> None:
        self.done.append("removed")
        self.removed = on_done

    def _forget(self, record: StreamRecord) -> None:
        if self.disk is not None:
            raise self.disk
        self.done.append("forgotten")


def test_a_stream_ends_after_a_while_also_where_a_child_takes_nothing() -> None:
    rig = Rig()
    rig.endings.begin(rig.node, rig.told.append)
    assert rig.node in rig.endings and rig.node.why_paused == "is being ended"
    with pytest.raises(StreamRefused, match="is being ended already"):
        rig.endings.begin(rig.node, rig.told.append)
    rig.endings.tick()
    assert not rig.done
    rig.host.time_s = DRAIN_S
    rig.endings.tick()
    assert rig.done == ["removed", "released", "given up: ended", "forgotten"]
    assert not rig.told
    rig.removed(None)
    assert rig.told == [None] and rig.node not in rig.endings


def test_who_is_not_the_producer_any_more_does_not_end_the_stream_of_the_one_that_is() -> None:
    rig = Rig()
    rig.endings.begin(rig.node, rig.told.append)
    rig.node.is_producer, rig.node.record = False, rig.node.record.handed_to(OTHER)
    rig.host.time_s = DRAIN_S
    rig.endings.tick()
    assert not rig.done
    [why] = rig.told
    assert isinstance(why, StreamRefused) and OTHER.address in str(why)


def test_where_the_disk_does_not_forget_a_stream_its_client_is_told_once() -> None:
    rig = Rig()
    rig.node.has_sent_all = lambda: True
    rig.disk = Unavailable("the disk is full")
    rig.endings.begin(rig.node, rig.told.append)
    assert rig.done == ["removed", "released", "given up: ended"] and not rig.told
    rig.removed(None)
    assert rig.told == [rig.disk]


def test_a_name_is_given_up_also_where_the_disk_does_not_forget_it() -> None:
    rig = Rig()
    rig.disk = Unavailable("the disk is full")
    other = StreamRecord.of(SPEC, OTHER)
    rig.registry.find = lambda name, found, owner: found(other)
    Succession(rig.streams).name_lost(rig.node.record)
    assert rig.done == ["renewed no more", "withdrawn", "given up: another producer has the name"]

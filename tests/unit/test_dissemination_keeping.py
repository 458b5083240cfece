"""What a producer keeps of a durable stream, where the disk refuses in between."""

from __future__ import annotations

from typing import Any

import pytest

from peerd.sim.logs import LogOnDisk
from peerd.testing.host import FakeHost
from protocols.dissemination.models import StreamSpec
from protocols.dissemination.names import stream_key
from protocols.dissemination.plugin import Dissemination
from protocols.dissemination.producer.keeping import BEGIN_AGAIN_S
from tests.support.large_items import Aside

SPEC = StreamSpec(name="news", kind="attributes", policy="first_fit", durable=True)
KEY = stream_key("news")
LARGE = b'{"n": 2, "text": "%b"}' % (b"y" * 200_000)


class Producer:
    """A node with a durable stream, whose large items are matched when the test says so."""

    def __init__(self) -> None:
        self.plugin = Dissemination()
        self.host = FakeHost(1, self.plugin)
        self.plugin.changes.create(SPEC, lambda answer: None)
        self.host.run_later()
        node = self.plugin.nodes.get(KEY)
        assert node is not None and node.keeping is not None
        self.node, self.keeping, self.aside = node, node.keeping, Aside()
        node.member.state.matching.offload = self.aside.offload

    def publish(self, payload: bytes) -> None:
        self.plugin.publishers.publish("news", payload)
        self.host.run_later()

    def on_disk(self) -> list[tuple[int, bool]]:
        """The records that count: the number of each, and whether it is an item."""
        log = self.plugin.produced.logs.open("news")
        assert log is not None
        return [(kept.at.sequence, kept.item is not None) for some in log.read() for kept in some]


def _no_write(self: LogOnDisk, records: Any, first: int, done: Any, failed: Any) -> None:
    self._later(0.001, lambda: failed(OSError("No space left on device")))


def test_a_log_that_is_begun_again_counts_from_behind_a_large_item_that_was_let_go_without_the_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    producer = Producer()
    producer.publish(b'{"n": 1}')
    with monkeypatch.context() as patch:
        patch.setattr(LogOnDisk, "write", _no_write)
        producer.publish(LARGE)
    assert not producer.keeping.is_kept and len(producer.aside.jobs) == 1
    producer.host.time_s += BEGIN_AGAIN_S
    producer.node.tick()
    producer.host.run_later()
    assert producer.keeping.is_kept
    producer.publish(b'{"n": 3}')
    producer.aside.do()
    assert producer.node.member.state.watermark.sequence == 3
    assert producer.on_disk() == [(2, False), (3, True)], "a past from behind the first item has a hole in it"

"""The plugin starts also where the disk is full, and has what has to be removed."""

from __future__ import annotations

from typing import Any

import pytest

from peerd.errors import Unavailable
from peerd.testing.host import FakeHost
from protocols.dissemination.documents.manifest import Attachment
from protocols.dissemination.models import StreamSpec
from protocols.dissemination.plugin import Dissemination

DURABLE = StreamSpec(name="news", kind="classes", policy="first_fit", durable=True)
WITHOUT_FILE = Attachment("disk.img", 1000, 256 * 1024, b"d" * 32)


def _refuse(*arguments: Any) -> Any:
    raise Unavailable("the disk is full")


def start_again(host: FakeHost) -> Dissemination:
    host.plugin = plugin = Dissemination()
    host.timers.clear()
    plugin.start(host)
    host.run_later()
    return plugin


@pytest.mark.parametrize("key", ["document.00", "named.audit", "stream.news", "past.news"])
def test_what_cannot_be_read_is_left_where_the_disk_does_not_remove_it(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    host = FakeHost(1)
    host.store.put(key, b"what this never wrote")
    with monkeypatch.context() as patch:
        patch.setattr(host.store, "delete", _refuse)
        assert start_again(host).questions.streams() == []
    plugin = start_again(host)
    assert host.store.keys() == [], "the next start removes it"
    plugin.changes.create(DURABLE, lambda answer: None)
    host.run_later()
    assert host.store.keys() == ["past.news"]


def test_a_document_whose_first_chunk_did_not_get_to_the_disk_does_not_keep_the_plugin_from_starting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = FakeHost(1)
    start_again(host).exchange.store.add(WITHOUT_FILE, "news", "1-1")
    with monkeypatch.context() as patch:
        patch.setattr(host.store, "delete", _refuse)
        assert list(start_again(host).exchange.store) == []
    assert len(host.store.keys()) == 1
    start_again(host)
    assert host.store.keys() == []

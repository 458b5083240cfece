"""What is on disk of named subscriptions: how far each was read, and not how far another one of its name was."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from peerd.testing.host import FakeHost, peer
from protocols.dissemination import named
from protocols.dissemination.models import StreamSpec
from protocols.dissemination.named import NamedSubscriptions
from protocols.dissemination.stream import StreamRecord


class Disk:
    """One node's named subscriptions, which are loaded anew after each restart."""

    def __init__(self) -> None:
        self.host = FakeHost(1)
        self.time_s = 0.0
        self.restart()

    def restart(self) -> None:
        self.host.run_later()
        self.named = NamedSubscriptions(self.host)
        self.found = {name: (saved.stream, saved.after) for name, saved in self.named.load().items()}

    def begin(self, after: str, stream: str = "news", creator: str = "") -> Any:
        made: Any = SimpleNamespace(
            name="audit", stream=stream, interest=SimpleNamespace(text=""), is_live=True, is_ended=False, at=None
        )
        made.creator, made.owner = creator, ""
        made.taken = lambda: made.at
        self.named.keep(made, after)
        return made

    def read(self, subscription: Any, at: str) -> None:
        subscription.at = at
        self.time_s += named.SAVE_S
        self.named.save([subscription], self.time_s)
        self.host.run_later()


def test_one_that_is_made_anew_begins_where_it_is_told_to_and_not_where_the_last_one_was() -> None:
    disk = Disk()
    disk.read(disk.begin("0-0"), "7-5000")
    disk.named.forget("audit")
    disk.begin("0-0")
    disk.restart()
    assert disk.found == {"audit": ("news", "0-0")}
    disk.named.forget("audit")
    disk.begin("5-3", "other")
    disk.restart()
    assert disk.found == {"audit": ("other", "5-3")}
    assert disk.named.after("audit", "other", "") == "5-3"


def test_the_last_place_counts_also_where_it_is_lower_than_where_the_subscription_began() -> None:
    disk = Disk()
    disk.read(disk.begin("7-100"), "6-12")
    disk.restart()
    assert disk.found == {"audit": ("news", "6-12")}


def test_the_places_are_still_told_apart_when_all_are_written_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peerd.lib.saved.PLACES_BYTES", 100)
    disk = Disk()
    subscription = disk.begin("0-0")
    for number in range(1, 20):
        disk.read(subscription, f"7-{number}")
    disk.restart()
    assert disk.found == {"audit": ("news", "7-19")}


def test_what_an_older_version_wrote_is_gone_on_with() -> None:
    disk = Disk()
    disk.host.store.put("named.audit", b'{"stream": "news", "interest": "", "after": "7-1"}')
    disk.host.store.log("places").append(b'{"audit": "7-9"}')
    disk.restart()
    assert disk.found == {"audit": ("news", "7-9")}


def test_a_stream_that_another_node_has_created_is_told_apart_and_one_of_an_older_version_is_not() -> None:
    spec = StreamSpec(name="news", kind="classes", policy="first_fit")
    one, other = (StreamRecord.of(spec, peer(number)) for number in (1, 2))
    disk = Disk()
    disk.begin("7-1", creator=one.creator)
    disk.restart()
    assert not disk.named.is_of_other("audit", one) and disk.named.is_of_other("audit", other)
    assert not disk.named.is_of_other("audit", one.handed_to(peer(2))), "who produces it now is not the question"
    assert not disk.named.is_of_other("audit", other.model_copy(update={"name": "old"}))
    assert not disk.named.is_of_other("another", other)
    assert not disk.named.is_of_other("audit", other.model_copy(update={"creator": ""}))
    disk.begin("7-1")
    assert not disk.named.is_of_other("audit", other)

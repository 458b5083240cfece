"""Large documents on a simulated ring: they reach everybody, whatever dies, lies or is full, as fast as links are."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from peerd.api import SizedBlob
from peerd.errors import Unavailable
from peerd.limits import MIB
from peerd.sim.files import SimFiles
from peerd.sim.latency import ConstantLatency
from peerd.sim.network import NetworkConfig
from peerd.sim.simulation import Place, Simulation
from peerd.testing.simulation import ring
from protocols.dissemination.config import DisseminationConfig
from protocols.dissemination.documents.exchange import FETCHING_MAX, IDLE_S
from protocols.dissemination.documents.store import KeptDocument
from protocols.dissemination.front.judging import plugin_of
from protocols.dissemination.models import StreamSpec, StreamSubscriptionRequest
from protocols.dissemination.plugin import Dissemination
from tests.support.long_cases import cases

LINK_BYTES_PER_S = 12.5e6
"""100 Mb/s."""


class Documents:
    """A ring in which everybody subscribes to one stream of the first node."""

    def __init__(
        self,
        count: int,
        seed: int = 1,
        policy: str = "first_fit",
        link: float = LINK_BYTES_PER_S,
        latency_s: float = 0.001,
        **settings: Any,
    ) -> None:
        config = DisseminationConfig.model_validate({"fan_out": 3, "unread_for": "1h", **settings})
        self.records: list[dict[str, object]] = []
        self.simulation: Simulation = ring(
            count,
            seed,
            plugins=lambda index: [Dissemination(config)],
            network=NetworkConfig(up_bytes_per_s=link, down_bytes_per_s=link),
            latency=ConstantLatency(latency_s),
            sink=self,
            check_every=200,
        )
        self.rng = Random(seed)
        self.producer: Place = self.simulation.nodes[0]
        told: list[object] = []
        spec = StreamSpec(name="files", kind="attributes", policy=policy)
        plugin_of(self.producer).changes.create(spec, told.append)
        self.simulation.run_until(lambda: bool(told), limit_s=30.0)
        for place in self.others:
            self.subscribe(place)

    def write(self, record: dict[str, object]) -> None:
        """Keep what the nodes tell."""
        self.records.append(record)

    def close(self) -> None:
        """Nothing is open."""

    @property
    def others(self) -> list[Place]:
        return [place for place in self.simulation.nodes[1:] if place.is_live]

    def subscribe(self, place: Place, after: str | None = None) -> None:
        told: list[object] = []
        plugin_of(place).subscribing.subscribe(StreamSubscriptionRequest(stream="files", after=after), told.append)
        self.simulation.run_until(lambda: bool(told), limit_s=60.0)
        assert not isinstance(told[0], Exception), told

    def publish(self, size: int) -> bytes:
        """A document whose chunks are numbers, and padding. Returns its id."""
        draft = plugin_of(self.producer).documents.draft("files", size, "a.bin", "")
        number = 0
        while draft.piece_bytes:
            told: list[object] = []
            text = b"chunk %d" % number
            draft.add(SizedBlob(text, draft.piece_bytes - len(text)), told.append)
            self.simulation.run_until(lambda told=told: bool(told), limit_s=10.0)  # type: ignore[misc]  # bound early
            assert told == [True]
            number += 1
        draft.publish()
        [kept] = [kept for kept in plugin_of(self.producer).exchange.store if kept.attachment.size == size]
        return kept.id

    def kept(self, place: Place, id: bytes) -> KeptDocument | None:
        return plugin_of(place).exchange.store.get(id)

    def having(self, id: bytes) -> list[Place]:
        return [place for place in self.others if (kept := self.kept(place, id)) is not None and kept.is_complete]

    def until_all_have(self, id: bytes, limit_s: float) -> float:
        begun = self.simulation.now
        self.simulation.run_until(lambda: len(self.having(id)) == len(self.others), limit_s=limit_s)
        return self.simulation.now - begun

    def some_way(self, id: bytes, place: Place, share: float) -> None:
        """Go on until a node has this share of the chunks."""

        def is_there() -> bool:
            active = plugin_of(place).exchange.active(id)
            return active is not None and active.download.have.bit_count() >= share * active.download.count

        self.simulation.run_until(is_there, limit_s=60.0)

    def events(self, name: str) -> list[dict[str, object]]:
        return [record for record in self.records if record["event"] == f"dissemination.{name}"]


def files_of(place: Place) -> SimFiles:
    files = plugin_of(place).exchange.store.files
    inner = getattr(files, "_files", None)
    assert isinstance(inner, SimFiles)
    return inner


def inner_nodes(documents: Documents) -> list[Place]:
    return [place for place in documents.others if any(node.member.down.children for node in plugin_of(place).nodes)]


def test_a_document_reaches_all_near_the_speed_of_one_link() -> None:
    documents = Documents(17)
    size = 128 * MIB
    took_s = documents.until_all_have(documents.publish(size), limit_s=60.0)
    assert took_s <= 1.6 * size / LINK_BYTES_PER_S, "the tree alone would take three times as long as one link"
    assert len(documents.events("document_finished")) == 16


@pytest.mark.long
def test_a_document_is_not_much_slower_where_queues_make_every_way_long() -> None:
    link = 625_000.0  # 5 Mb/s: a chunk takes four one-way latencies
    documents = Documents(17, link=link, latency_s=0.1, fan_out=6)
    took_s = documents.until_all_have(documents.publish(16 * MIB), limit_s=100.0)
    assert took_s <= 1.75 * 16 * MIB / link, "1.94 with four chunks at once: links are idle while connections begin"


@pytest.mark.parametrize("seed", cases([0, 3], [1, 2]))
def test_nodes_that_die_on_the_way_cost_the_others_no_chunk(seed: int) -> None:
    documents = Documents(18, seed)
    id = documents.publish(32 * MIB)
    for share in (0.2, 0.5, 0.8):
        documents.some_way(id, documents.others[-1], share)
        documents.simulation.kill(documents.rng.choice(inner_nodes(documents) or documents.others))
    documents.until_all_have(id, limit_s=90.0)
    received = sum(kept.attachment.size for place in documents.others if (kept := documents.kept(place, id)))
    assert received == 14 * 32 * MIB


def test_a_document_goes_on_without_its_producer_when_its_members_have_it_all_together() -> None:
    documents = Documents(6)
    id = documents.publish(16 * MIB)

    def have_it_together() -> bool:
        found = [plugin_of(place).exchange.active(id) for place in documents.others]
        known = 0
        for active in found:
            known |= 0 if active is None else active.download.have
        return known.bit_count() == 64

    documents.simulation.run_until(have_it_together, limit_s=60.0, poll_s=0.002)
    assert len(documents.having(id)) < len(documents.others), "somebody still lacks something"
    documents.simulation.kill(documents.producer)
    documents.until_all_have(id, limit_s=60.0)


def test_a_node_that_is_restarted_goes_on_with_what_it_had() -> None:
    documents = Documents(4)
    id = documents.publish(32 * MIB)
    place = documents.others[1]
    documents.some_way(id, place, 0.4)
    documents.simulation.kill(place)
    documents.simulation.run_for(5.0)
    documents.simulation.restart(place)
    documents.simulation.run_for(10.0)
    documents.subscribe(place, "start")
    documents.until_all_have(id, limit_s=60.0)
    begun = [record for record in documents.events("document_begun") if record["kept"]]
    assert len(begun) == 1 and int(str(begun[0]["kept"])) >= 0.4 * 30 * MIB


def test_a_client_that_reads_what_does_not_come_is_refused_with_an_event() -> None:
    documents = Documents(3)
    id = documents.publish(16 * MIB)
    place = documents.others[1]
    documents.some_way(id, place, 0.3)
    documents.simulation.kill(place)
    documents.simulation.run_for(5.0)
    documents.simulation.restart(place)
    documents.simulation.run_for(10.0)
    told: list[object] = []
    with pytest.raises(Unavailable, match="in part only"):
        plugin_of(place).documents.read(id.hex(), 5, told.append)
    [event] = documents.events("document_not_read")
    assert (event["document"], event["chunk"], told) == (id.hex(), 5, []) and "in part only" in str(event["reason"])


def test_a_chunk_that_is_wrong_is_thrown_away_and_asked_of_another() -> None:
    documents = Documents(5)
    size = 16 * MIB
    draft_files = files_of(documents.producer)
    liar = documents.others[0]
    id = documents.publish(size)
    documents.until_all_have(id, limit_s=60.0)
    last = documents.others[-1]
    kept = documents.kept(last, id)
    assert kept is not None
    for place in (liar, documents.others[1]):
        disk = files_of(place)._disk
        for offset, piece in disk[kept.file].items():
            assert isinstance(piece, SizedBlob)
            disk[kept.file][offset] = SizedBlob(b"wrong" + piece.payload[5:], piece.padding_bytes)
    documents.simulation.kill(last)
    documents.simulation.run_for(5.0)
    documents.simulation.restart(last)
    documents.simulation.run_for(10.0)
    plugin = plugin_of(last)
    again = plugin.exchange.store.get(id)
    assert again is not None and again.is_complete, "it was there before"
    plugin.exchange.store.remove(again)
    documents.simulation.run_for(1.0)
    documents.subscribe(last, "start")
    documents.until_all_have(id, limit_s=120.0)
    correct = draft_files._disk[kept.file]
    assert files_of(last)._disk[kept.file] == correct
    refused = documents.events("chunk_refused")
    assert refused, "somebody must have sent a wrong chunk"
    assert {record["sender"] for record in refused} <= {
        format(place.id, "032x") for place in (liar, documents.others[1])
    }


def test_a_full_disk_is_told_and_the_stream_goes_on() -> None:
    documents = Documents(4)
    place = documents.others[2]
    files_of(place).room_bytes = 4 * MIB
    id = documents.publish(16 * MIB)
    documents.simulation.run_until(lambda: len(documents.having(id)) == 2, limit_s=60.0)
    documents.simulation.run_for(20.0)
    assert place not in documents.having(id)
    stopped = [record["reason"] for record in documents.events("document_stopped")]
    assert set(stopped) == {"disk"} and len(stopped) <= 2
    received = [each.received for each in plugin_of(place).clients]
    assert received == [1], "the item itself has come"
    files_of(place).room_bytes = None
    documents.until_all_have(id, limit_s=90.0)


def test_documents_are_kept_within_a_limit_and_the_oldest_go() -> None:
    documents = Documents(3, documents_max_bytes="20MiB", document_max_bytes="16MiB")
    first = documents.publish(8 * MIB)
    documents.until_all_have(first, limit_s=30.0)
    second = documents.publish(9 * MIB)
    documents.until_all_have(second, limit_s=30.0)
    third = documents.publish(10 * MIB)
    documents.until_all_have(third, limit_s=30.0)
    for place in documents.simulation.nodes:
        assert documents.kept(place, first) is None
        assert plugin_of(place).exchange.store.bytes == 19 * MIB
        assert sum(files_of(place).sizes().values()) == 19 * MIB
    assert len(documents.events("document_evicted")) == 3


def test_a_document_that_somebody_has_asked_for_lately_goes_after_one_that_nobody_has() -> None:
    documents = Documents(2, documents_max_bytes="20MiB", document_max_bytes="16MiB")
    [member] = documents.others
    old = documents.publish(8 * MIB)
    new = documents.publish(9 * MIB)
    documents.until_all_have(old, limit_s=30.0)
    documents.until_all_have(new, limit_s=30.0)
    documents.simulation.run_for(IDLE_S + 5.0)
    store, kept = plugin_of(member).exchange.store, documents.kept(member, old)
    assert kept is not None and plugin_of(documents.producer).exchange.active(old) is None
    store.remove(kept)
    documents.subscribe(member, "start")
    documents.until_all_have(old, limit_s=30.0)
    documents.publish(10 * MIB)
    assert documents.kept(documents.producer, old) is not None
    assert documents.kept(documents.producer, new) is None


def test_documents_that_nobody_has_any_more_do_not_keep_others_waiting() -> None:
    documents = Documents(3)
    store = plugin_of(documents.producer).exchange.store
    for number in range(FETCHING_MAX):
        kept = store.get(documents.publish(MIB + number))
        assert kept is not None
        store.remove(kept)
    documents.simulation.run_for(5.0)
    documents.until_all_have(documents.publish(2 * MIB), limit_s=30.0)


def test_a_document_that_is_too_large_for_a_node_is_left_out_which_is_told_once() -> None:
    documents = Documents(2)
    small = documents.others[0]
    plugin_of(small).config = DisseminationConfig.model_validate(
        {"fan_out": 3, "unread_for": "1h", "document_max_bytes": "1MiB"}
    )
    id = documents.publish(8 * MIB)
    documents.simulation.run_for(10.0)
    assert documents.kept(small, id) is None
    assert [record["reason"] for record in documents.events("document_stopped")] == ["too_large"]

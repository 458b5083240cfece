"""Values that their owners have signed: what holders take from caches, and what not. Transcripts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from peerd.ids import NodeId
from peerd.testing.host import FakeHost
from protocols.measurement.guarantee.caching import Caching
from protocols.measurement.guarantee.effects import Disbelieved, Effect, SendTo
from protocols.measurement.guarantee.interval import Interval
from protocols.measurement.guarantee.messages import CacheUpdate
from protocols.measurement.guarantee.words import (
    BoundClaim,
    Measurement,
    NoSignatures,
    Sample,
    Signatures,
    SignatureVerdict,
    Terms,
    Want,
)
from protocols.measurement.placing.checking import OwnerSignatures

OWNER, CACHE, LEAF = NodeId(1), NodeId(2), NodeId(3)
CPU = Measurement(OWNER, "cpu")
KEYS = {node: FakeHost(node).public_key for node in (OWNER, CACHE, LEAF)}


def signatures(node: NodeId, *, knows: bool = True) -> OwnerSignatures:
    """Those of a node that knows all keys, or none."""
    return OwnerSignatures(FakeHost(node), lambda: KEYS if knows else {})


class Chain:
    """An owner, a cache, and a leaf that holds from the cache. ``falsify``: what the cache makes of its words."""

    def __init__(self, owner: Signatures | None = None, *, leaf_knows: bool = True) -> None:
        kinds = {OWNER: owner or signatures(OWNER), CACHE: signatures(CACHE)}
        kinds[LEAF] = signatures(LEAF, knows=leaf_knows)
        self.nodes = {node: Caching(node, 1, Terms(), kind) for node, kind in kinds.items()}
        self.now = 100.0
        self.doubts: list[tuple[NodeId, Disbelieved]] = []
        self.told: list[BoundClaim] = []
        """What the owner has told the cache."""
        self.falsify: dict[str, Any] = {}
        self.sample(50.0)
        for node, provider in ((CACHE, OWNER), (LEAF, CACHE)):
            self.do(node, self.nodes[node].want([Want(CPU, float(node))], provider, self.now))

    def sample(self, value: float) -> None:
        self.now += 10.0  # what is gathered is told
        self.do(OWNER, self.nodes[OWNER].sampled({"cpu": value}, self.now, self.now))

    def do(self, node: NodeId, effects: list[Effect]) -> None:
        """Carry out what a node wants done: messages arrive at once."""
        for effect in effects:
            if isinstance(effect, Disbelieved):
                self.doubts.append((node, effect))
            elif isinstance(effect, SendTo):
                to, message = self.nodes[effect.to], effect.message
                if not isinstance(message, CacheUpdate):
                    self.do(effect.to, to.asked(node, message, self.now))
                    continue
                if node == OWNER:
                    self.told += [entry.claim for entry in message.entries]
                elif self.falsify:
                    entries = [replace(each, claim=replace(each.claim, **self.falsify)) for each in message.entries]
                    message = replace(message, entries=tuple(entries))
                self.do(effect.to, to.heard(node, message, self.now))

    def leaf(self) -> tuple[float, bool]:
        """The value that the leaf has, and whether it is stale."""
        answer = self.nodes[LEAF].read(CPU, self.now)
        assert answer is not None
        return answer.claim.value, answer.is_stale


def test_a_signature_goes_along_and_shows_everybody_what_the_owner_has_read() -> None:
    chain = Chain()
    chain.sample(70.0)
    first, second = chain.told
    assert first.signature and second.signature not in (first.signature, b"")
    for node in (CACHE, LEAF):
        held = chain.nodes[node].holder.held[CPU]
        assert held.claim.signature == second.signature and held.claim.value == 70.0
        assert signatures(node).verdict(CPU, held.claim) is SignatureVerdict.GENUINE
    assert not chain.doubts


def test_an_owner_signs_a_sample_once_whoever_holds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[bytes] = []
    kind = signatures(OWNER)
    sign = kind._host.sign

    def count(statement: bytes) -> bytes:
        made.append(statement)
        return sign(statement)

    monkeypatch.setattr(kind._host, "sign", count)
    chain = Chain(kind)
    for holder in range(10, 14):
        chain.nodes[NodeId(holder)] = Caching(NodeId(holder), 1, Terms())
        chain.do(NodeId(holder), chain.nodes[NodeId(holder)].want([Want(CPU, 1.0)], OWNER, chain.now))
    assert len(chain.told) == 5 and len(made) == 1
    chain.sample(50.5)
    assert len(chain.told) == 5 and len(made) == 1, "no bound is broken, and nothing is told"


@pytest.mark.parametrize(
    "falsify",
    [
        {"value": 71.0},
        {"since": Sample(0, 1)},
        {"interval": Interval(71.0, 72.0)},
        {"signature": b"x" * 64},
        {"signature": FakeHost(CACHE).sign(b"measured ")[:64]},
    ],
    ids=lambda falsify: " ".join(falsify),
)
def test_who_falsifies_a_claim_is_not_believed(falsify: dict[str, Any]) -> None:
    chain = Chain()
    chain.falsify = falsify
    chain.sample(70.0)
    assert set(chain.doubts) == {(LEAF, Disbelieved(CPU, CACHE, is_forged=True))}
    assert chain.leaf() == (50.0, True), "what it held is not vouched for any more"


def test_a_claim_without_a_signature_is_believed_of_its_owner_alone() -> None:
    chain = Chain(NoSignatures())
    assert chain.nodes[CACHE].holder.held[CPU].claim.signature == b""
    assert chain.doubts == [(LEAF, Disbelieved(CPU, CACHE, is_forged=False))]
    assert CPU not in chain.nodes[LEAF].holder.held


def test_an_owner_that_signs_falsely_has_nobody_blamed_who_passes_it_on() -> None:
    class Wrong(NoSignatures):
        def signed(self, measurement: Measurement, claim: BoundClaim) -> BoundClaim:
            return replace(claim, signature=b"x" * 64)

    chain = Chain(Wrong())
    assert chain.nodes[CACHE].holder.held[CPU].claim.signature == b"", "it is held, since their link shows who says it"
    assert [doubt.is_forged for _, doubt in chain.doubts] == [False]


def test_who_does_not_know_the_owners_key_blames_nobody() -> None:
    chain = Chain(leaf_knows=False)
    assert chain.doubts == [(LEAF, Disbelieved(CPU, CACHE, is_forged=False))]


@given(
    value=st.floats(-1e6, 1e6),
    sample=st.builds(Sample, st.integers(0, 9), st.integers(0, 9)),
    name=st.sampled_from(["cpu", "memory"]),
    node=st.sampled_from([OWNER, CACHE]),
    below=st.floats(-5.0, 5.0),
    above=st.floats(0.0, 5.0),
)
def test_only_what_the_owner_has_said_is_genuine(
    value: float, sample: Sample, name: str, node: NodeId, below: float, above: float
) -> None:
    said = signatures(OWNER).signed(CPU, BoundClaim(1.0, 1.0, Interval(1.0, 1.0), Sample(1, 1)))
    interval = Interval(1.0 - below, max(1.0 - below, 1.0 + above))
    for claim, measurement in (
        (replace(said, value=value), CPU),
        (replace(said, since=sample), CPU),
        (said, Measurement(node, name)),
        (replace(said, interval=interval, level=value, hops=3), CPU),
    ):
        is_said = (claim.value, claim.since, measurement) == (1.0, Sample(1, 1), CPU)
        is_right = is_said and claim.interval.holds(1.0)
        assert signatures(LEAF).verdict(measurement, claim) is (
            SignatureVerdict.GENUINE if is_right else SignatureVerdict.FORGED
        )

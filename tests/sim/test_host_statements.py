"""`Host.sign` and `Host.verify`: a proof is bound to the plugin that made it, in a node and in a fake host alike."""

from __future__ import annotations

from typing import Any, ClassVar

from peerd.api import Plugin
from peerd.ids import NodeId
from peerd.limits import PROOF_BYTES_MAX
from peerd.sim.simulation import Place
from peerd.testing.host import FakeHost
from peerd.testing.simulation import ring

SAID = b"stop round 7"


class Speaker(Plugin):
    name: ClassVar[str] = "speaker"


class Mimic(Plugin):
    name: ClassVar[str] = "mimic"


def host_of(place: Place, plugin: type[Plugin]) -> Any:
    return place.node.plugins[plugin.name].host


def test_a_proof_of_one_plugin_is_none_for_another() -> None:
    simulation = ring(2, 1, plugins=lambda index: [Speaker(), Mimic()])
    one, two = simulation.nodes
    proof = host_of(one, Speaker).sign(SAID)
    assert 0 < len(proof) <= PROOF_BYTES_MAX
    assert host_of(two, Speaker).verify(one.id, SAID, proof)
    assert not host_of(two, Mimic).verify(one.id, SAID, proof)
    assert not host_of(two, Speaker).verify(one.id, SAID, host_of(one, Mimic).sign(SAID))
    assert not host_of(two, Speaker).verify(two.id, SAID, proof)
    assert host_of(one, Speaker).sign(SAID) == proof, "the same run gives the same bytes"


def test_a_fake_host_checks_what_another_has_signed() -> None:
    one, two, mimic = FakeHost(1, Speaker()), FakeHost(2, Speaker()), FakeHost(2, Mimic())
    proof = one.sign(SAID)
    assert two.verify(NodeId(1), SAID, proof) and not mimic.verify(NodeId(1), SAID, proof)
    assert not two.verify(NodeId(2), SAID, proof) and not two.verify(NodeId(1), SAID + b"!", proof)

"""What `peerd.driver.Identity` promises, for both drivers: who said what can be checked, and cannot be made up."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from peerd.errors import Bug
from peerd.ids import NodeId
from peerd.limits import PROOF_BYTES_MAX, STATEMENT_BYTES_MAX
from peerd.sim.identity import PROOF_BYTES, SimulatedKeys
from tests.support.contract import ContractRig, on_both_hosts, on_both_hosts_with_keys

SAID = b"round 7 begins"


@on_both_hosts_with_keys
async def test_every_node_can_check_what_another_has_said(rig: ContractRig) -> None:
    one, two, three = rig.add(1), rig.add(2), rig.add(3)
    proof = one.driver.sign("rounds", SAID)
    assert two.driver.verify(one.peer.id, "rounds", SAID, proof)
    assert three.driver.verify(one.peer.id, "rounds", SAID, proof)
    assert one.driver.verify(one.peer.id, "rounds", SAID, proof), "and its own"


@on_both_hosts_with_keys
async def test_a_proof_holds_for_nothing_else(rig: ContractRig) -> None:
    one, two = rig.add(1), rig.add(2)
    proof = one.driver.sign("rounds", SAID)
    check = two.driver.verify
    assert check(one.peer.id, "rounds", SAID, proof)
    assert not check(two.peer.id, "rounds", SAID, proof), "another signer"
    assert not check(NodeId(77), "rounds", SAID, proof), "a signer that nobody knows"
    assert not check(one.peer.id, "records", SAID, proof), "another purpose"
    assert not check(one.peer.id, "rounds", SAID + b"!", proof), "another statement"
    assert not check(one.peer.id, "round", b"s" + SAID, proof), "a part of it moved into the purpose"


@on_both_hosts_with_keys
async def test_a_node_signs_in_its_own_name_only(rig: ContractRig) -> None:
    one, two = rig.add(1), rig.add(2)
    assert not one.driver.verify(one.peer.id, "rounds", SAID, two.driver.sign("rounds", SAID))


@on_both_hosts_with_keys
async def test_a_changed_proof_is_none_and_raises_nothing(rig: ContractRig) -> None:
    one, two = rig.add(1), rig.add(2)
    proof = one.driver.sign("rounds", SAID)
    for place in (0, 63, 64, 100, len(proof) // 2, len(proof) - 1):
        changed = bytearray(proof)
        changed[place] ^= 1
        assert not two.driver.verify(one.peer.id, "rounds", SAID, bytes(changed)), place
    for garbage in (b"", proof[:63], proof[:-1], proof + b"\0", bytes(PROOF_BYTES_MAX), bytes(PROOF_BYTES_MAX + 1)):
        assert not two.driver.verify(one.peer.id, "rounds", SAID, garbage)


@on_both_hosts_with_keys
async def test_a_signature_and_the_key_from_which_the_id_follows_show_who_has_signed(rig: ContractRig) -> None:
    one, two = rig.add(1), rig.add(2)
    me, key = one.peer.id, one.driver.public_key()
    signature = one.driver.sign("rounds", SAID)[:64]
    check = two.driver.verify_by_key
    assert check(me, "rounds", SAID, signature, key)
    theirs = two.driver.public_key()
    assert len(key) == len(theirs) == 48
    assert not check(me, "rounds", SAID, two.driver.sign("rounds", SAID)[:64], theirs), "its id follows from its key"
    assert not check(two.peer.id, "rounds", SAID, signature, key)
    assert not check(me, "rounds", SAID, signature, theirs)
    assert not check(me, "records", SAID, signature, key) and not check(me, "rounds", SAID + b"!", signature, key)
    for place in (0, 31, 32, 47):
        changed = bytearray(key)
        changed[place] ^= 1
        assert not check(me, "rounds", SAID, signature, bytes(changed)), place
    for garbage in (b"", key[:32], key + b"\0", bytes(48), b"\xff" * 48):
        assert not check(me, "rounds", SAID, signature, garbage)
    for garbage in (b"", signature[:63], signature + b"\0", bytes(64)):
        assert not check(me, "rounds", SAID, garbage, key)
    assert not check(me, "rounds", bytes(STATEMENT_BYTES_MAX + 1), signature, key)


@on_both_hosts_with_keys
async def test_a_proof_outlives_the_process_that_made_it(rig: ContractRig) -> None:
    one, two = rig.add(1), rig.add(2)
    proof = one.driver.sign("rounds", SAID)
    await rig.crash(one)
    assert two.driver.verify(one.peer.id, "rounds", SAID, proof)
    again = rig.again(one)
    assert again.peer.id == one.peer.id
    assert again.driver.verify(one.peer.id, "rounds", SAID, proof)
    assert two.driver.verify(one.peer.id, "rounds", SAID, again.driver.sign("rounds", SAID))


@on_both_hosts_with_keys
async def test_statements_and_proofs_have_a_largest_size(rig: ContractRig) -> None:
    one, two = rig.add(1), rig.add(2)
    most = bytes(STATEMENT_BYTES_MAX)
    proof = one.driver.sign("rounds", most)
    assert 0 < len(proof) <= PROOF_BYTES_MAX
    assert abs(len(proof) - PROOF_BYTES) <= 8, "simulated proofs are as long as real ones"
    assert two.driver.verify(one.peer.id, "rounds", most, proof)
    with pytest.raises(Bug, match="65537 bytes"):
        one.driver.sign("rounds", most + b"\0")
    assert not two.driver.verify(one.peer.id, "rounds", most + b"\0", proof)


@on_both_hosts
async def test_without_tls_there_are_no_proofs_in_the_daemon_and_every_node_is_believed(rig: ContractRig) -> None:
    one, two = rig.add(1), rig.add(2)
    proof = one.driver.sign("rounds", SAID)
    assert two.driver.verify(one.peer.id, "rounds", SAID, proof)
    key = one.driver.public_key()
    assert two.driver.verify_by_key(one.peer.id, "rounds", SAID, proof[:64], key)
    with pytest.raises(Bug):
        one.driver.sign("rounds", bytes(STATEMENT_BYTES_MAX + 1))


@given(st.text(max_size=20), st.binary(max_size=99), st.text(max_size=20), st.binary(max_size=99))
@settings(deadline=None)
def test_no_two_statements_share_a_simulated_proof(purpose: str, said: bytes, other: str, more: bytes) -> None:
    keys = SimulatedKeys(1)
    proof = keys.sign(NodeId(5), purpose, said)
    assert keys.verify(NodeId(5), other, more, proof) == ((purpose, said) == (other, more))
    assert not SimulatedKeys(2).verify(NodeId(5), purpose, said, proof)

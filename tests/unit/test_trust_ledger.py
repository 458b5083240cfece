"""Signed notices: what a node believes, keeps and passes on, and what it does not."""

from __future__ import annotations

from datetime import timedelta

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, strategies as st
from msgspec.structs import replace

from peerd.errors import ProtocolError, Unavailable
from peerd.identity import ledger as trust
from peerd.identity.authority import ClusterAuthority
from peerd.identity.ledger import (
    ISSUER_LIFE_S,
    BadSignature,
    TrustLedger,
    batches,
    kept_notice,
    notice_text,
    parse_notice_text,
    parse_subject,
    root_change,
    sign_notice,
)
from peerd.identity.roots import Roots
from peerd.ids import NodeId
from peerd.messages import PeerRef, encode_body
from peerd.wire.trust import Denial, IssuerNotice, SignedNotice, TrustNotices

CLUSTER = "test"
VICTIM = NodeId(0xAB)
SUBJECT = f"node:{VICTIM:032x}"
OLD = ClusterAuthority.create(CLUSTER)
NEW = OLD.successor(timedelta(days=30))
NOW = NEW.certificate.not_valid_before_utc.timestamp() + 600
LATER = NOW + 31 * 86_400
ED25519, UNKNOWN_KEY, NO_KEY = b"\x2b\x65\x70", b"\x2b\x65\x01", b"\x2b\x65\x71"
"""Object identifiers of key types: ours, one that does not exist, and X448, whose keys are longer than these bytes."""


def denial(version: int = 1, *, withdrawn: bool = False, subject: str = SUBJECT, cluster: str = CLUSTER) -> Denial:
    return Denial(cluster, version, subject, withdrawn, "stolen")


def ledger(roots: Roots = OLD.roots) -> TrustLedger:
    return TrustLedger(CLUSTER, roots)


def test_a_denial_is_kept_once_and_its_withdrawal_undoes_it() -> None:
    held = ledger()
    signed = sign_notice(OLD, denial(5))
    assert held.merge([signed], NOW) == [signed]
    assert held.merge([signed], NOW) == []
    assert held.denied_ids() == {VICTIM}
    undone = sign_notice(OLD, denial(6, withdrawn=True))
    assert held.merge([undone], NOW) == [undone]
    assert held.denied_ids() == frozenset()
    assert held.merge([signed], NOW) == []
    assert held.denied_ids() == frozenset()


def test_serial_numbers_are_denied_beside_nodes() -> None:
    held = ledger()
    held.put(OLD, denial(subject=f"serial:{7:040x}"), NOW)
    assert held.denied_ids() == frozenset()
    assert held.denied_serials() == {7}


@given(st.permutations([1, 2, 3, 4]), st.integers(0, 15))
def test_any_order_of_arrival_ends_alike(versions: list[int], withdrawn: int) -> None:
    held = ledger()
    for version in versions:
        held.merge([sign_notice(OLD, denial(version, withdrawn=bool(withdrawn >> version - 1 & 1)))], NOW)
    assert bool(held.denied_ids()) == (not withdrawn >> 3 & 1)
    assert len(held.signed()) == 1


def test_a_changed_record_is_an_offence() -> None:
    signed = sign_notice(OLD, denial())
    other = sign_notice(OLD, denial(subject=f"node:{1:032x}"))
    forged = [
        replace(signed, body=other.body),
        replace(signed, signature=bytes(64)),
        replace(signed, signature=signed.signature[:-1] + bytes([signed.signature[-1] ^ 1])),
        replace(sign_notice(ClusterAuthority.create(CLUSTER), denial()), signer=OLD.fingerprint),
    ]
    for bad in forged:
        held = ledger()
        with pytest.raises(BadSignature):
            held.merge([bad], NOW)
        assert held.signed() == []


def test_a_denial_is_not_taken_for_another_kind_of_record() -> None:
    """The type is signed too: one body may decode as more than one message."""
    signed = sign_notice(OLD, denial())
    with pytest.raises((BadSignature, ProtocolError)):
        ledger().merge([replace(signed, type_id=IssuerNotice.TYPE_ID)], NOW)


def test_another_cluster_is_an_offence_and_an_unknown_subject_is_none() -> None:
    with pytest.raises(ProtocolError):
        ledger().merge([sign_notice(OLD, denial(cluster="other"))], NOW)
    for odd in ("node:xyz", f"{VICTIM:032x}", "role:admin"):
        assert ledger().merge([sign_notice(OLD, denial(subject=odd))], NOW) == []


def test_one_bad_record_spoils_its_whole_message() -> None:
    """Else the good ones before it would be held, but neither obeyed nor on disk."""
    held = ledger()
    bad = replace(sign_notice(OLD, denial(subject=f"node:{1:032x}")), signature=bytes(64))
    with pytest.raises(BadSignature):
        held.merge([change(), sign_notice(OLD, denial()), bad], NOW)
    assert (held.signed(), held.roots) == ([], OLD.roots)


def test_an_unknown_root_or_kind_is_none() -> None:
    held = ledger()
    stranger = sign_notice(ClusterAuthority.create(CLUSTER), denial())
    unknown = SignedNotice(0x7FFF, b"", OLD.fingerprint, bytes(64))
    assert held.merge([stranger, unknown], NOW) == []


def test_issuers_are_known_latest_first_until_they_fall_silent() -> None:
    held = ledger()
    one, two = (PeerRef(NodeId(number), "192.0.2.1", number) for number in (1, 2))
    held.put(OLD, IssuerNotice(CLUSTER, int(NOW * 1000) - 1000, one), NOW)
    held.put(OLD, IssuerNotice(CLUSTER, int(NOW * 1000), two), NOW)
    assert held.issuers(NOW) == [two, one]
    assert held.issuers(NOW + ISSUER_LIFE_S + 1) == []
    # Two's clock was ahead when it said so, or ours is behind: its next words have larger versions still.
    assert held.issuers(NOW - 2 * ISSUER_LIFE_S) == [two, one]
    held.put(OLD, denial(subject=f"node:{2:032x}"), NOW)
    assert held.issuers(NOW) == [one]


def test_digests_are_equal_when_the_records_are() -> None:
    one, two = ledger(), ledger()
    notices = [sign_notice(OLD, denial(subject=f"node:{number:032x}")) for number in range(5)]
    one.merge(notices, NOW)
    two.merge(notices[::-1], NOW)
    assert one.digest() == two.digest() != ledger().digest()
    two.put(OLD, denial(9), NOW)
    assert one.digest() != two.digest()


def kept(held: TrustLedger) -> list[SignedNotice]:
    """What a restart finds."""
    return [kept_notice(row) for row in held.rows()]


def test_what_is_persisted_is_verified_again() -> None:
    held = ledger()
    held.put(OLD, denial(3), NOW)
    restored = ledger()
    restored.restore(kept(held), NOW)
    assert restored.denied_ids() == {VICTIM}
    strangers = ledger(ClusterAuthority.create(CLUSTER).roots)
    strangers.restore(kept(held), NOW)
    assert strangers.denied_ids() == frozenset()


def test_what_cannot_be_verified_is_told_and_costs_only_itself() -> None:
    held = ledger()
    held.put(OLD, denial(3), NOW)
    [good] = kept(held)
    for wrong in (replace(good, signature=bytes(64)), replace(good, type_id=0x000C), replace(good, body=b"\xc1")):
        restored = ledger()
        with pytest.raises(ValueError, match="1 cannot be used"):
            restored.restore([wrong, good], NOW)
        assert restored.denied_ids() == {VICTIM}


@pytest.mark.parametrize(
    "row", [(), ("deny", 1, "text", b"", b""), ("deny", "1", b"", b"", b""), ("deny", 1, b"", b"")]
)
def test_a_row_of_another_shape_is_refused(row: tuple[object, ...]) -> None:
    with pytest.raises(ValueError, match="a notice is"):
        kept_notice(row)


def test_the_ledger_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "NOTICES_MAX", 3)
    monkeypatch.setattr(trust, "NOTICES_NOT_DENIALS", 1)
    held = ledger()
    for number in range(2):
        held.put(OLD, denial(subject=f"node:{number:032x}"), NOW)
    with pytest.raises(Unavailable):
        held.put(OLD, denial(subject=f"node:{9:032x}"), NOW)
    held.put(OLD, denial(2, subject=f"node:{1:032x}", withdrawn=True), NOW)
    assert held.merge([change()], NOW)  # a full list of denials must not keep the root from changing
    with pytest.raises(Unavailable):
        held.put(NEW, IssuerNotice(CLUSTER, 1, PeerRef(NodeId(7), "192.0.2.1", 1)), NOW)


def test_the_next_version_is_the_time_and_always_larger() -> None:
    held = ledger()
    assert held.next_version(f"deny {SUBJECT}", NOW) == int(NOW * 1000)
    held.put(OLD, denial(int(NOW * 1000) + 50), NOW)
    assert held.next_version(f"deny {SUBJECT}", NOW) == int(NOW * 1000) + 51


# The root


def change(authority: ClusterAuthority = OLD, successor: ClusterAuthority = NEW) -> SignedNotice:
    return sign_notice(authority, root_change(successor.roots, CLUSTER, NOW))


def test_a_change_of_the_root_comes_before_what_the_new_root_signs() -> None:
    held = ledger()
    news = held.merge([sign_notice(NEW, denial()), change()], NOW)
    assert len(news) == 2
    assert held.roots.newest == NEW.certificate
    assert held.roots.previous == OLD.certificate
    assert held.denied_ids() == {VICTIM}


def test_during_the_overlap_both_roots_are_heard_and_after_it_the_new_one() -> None:
    held = ledger()
    held.merge([change(), sign_notice(OLD, denial(1)), sign_notice(NEW, denial(1, subject=f"node:{1:032x}"))], NOW)
    assert held.denied_ids() == {VICTIM, NodeId(1)}
    assert not held.expire(NOW)
    assert held.expire(LATER)
    assert not held.expire(LATER)
    assert held.roots == Roots(NEW.certificate)
    assert held.denied_ids() == {NodeId(1)}
    assert held.merge([sign_notice(OLD, denial(99))], LATER) == []


def test_a_denial_that_only_the_old_root_signed_is_known_to_be_so() -> None:
    held = ledger()
    held.merge([sign_notice(OLD, denial(1))], NOW)
    assert held.stale_denials() == []
    held.merge([change(), sign_notice(NEW, denial(1, subject=f"node:{1:032x}"))], NOW)
    assert [stale.subject for stale in held.stale_denials()] == [SUBJECT]
    held.put(NEW, denial(2), NOW)
    assert held.stale_denials() == []


def test_a_restart_within_and_after_the_overlap() -> None:
    held = ledger()
    held.merge([change(), sign_notice(NEW, denial())], NOW)
    again = ledger(held.roots)
    again.restore(kept(held), NOW)
    assert (again.roots, again.digest()) == (held.roots, held.digest())
    late = ledger(held.roots)
    late.restore(kept(held), LATER)
    assert late.expire(LATER)
    assert late.denied_ids() == {VICTIM}


def test_who_slept_through_the_overlap_does_not_follow() -> None:
    held = ledger()
    assert held.merge([change()], LATER) == []
    assert held.roots == OLD.roots


def test_a_stolen_old_key_cannot_undo_a_rotation() -> None:
    held = ledger()
    held.merge([change()], NOW)
    rogue = OLD.successor(timedelta(days=30))
    assert held.merge([change(OLD, rogue)], NOW) == []
    assert held.roots.newest == NEW.certificate


def test_a_change_must_lead_from_one_root_to_the_next() -> None:
    stranger = ClusterAuthority.create(CLUSTER)
    other = stranger.successor(timedelta(days=30))
    with pytest.raises(ProtocolError):
        ledger().merge([change(OLD, other)], NOW)
    notice = root_change(NEW.roots, CLUSTER, NOW)
    with pytest.raises(ProtocolError):
        ledger().merge([sign_notice(OLD, replace(notice, root=b"\x30\x00"))], NOW)
    with pytest.raises(ProtocolError):
        ledger().merge([sign_notice(OLD, replace(notice, cross=notice.root))], NOW)


@pytest.mark.parametrize("kind", [UNKNOWN_KEY, NO_KEY], ids=["unknown kind of key", "key of a wrong length"])
@pytest.mark.parametrize("field", ["root", "cross"])
def test_a_change_to_a_certificate_whose_key_cannot_be_read_is_an_offence(field: str, kind: bytes) -> None:
    """Found by the fuzzer: certificates are parsed lazily, so that one loads although its key does not."""
    notice = root_change(NEW.roots, CLUSTER, NOW)
    key = NEW.certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    changed = getattr(notice, field).replace(key, key.replace(ED25519, kind))
    with pytest.raises(ProtocolError, match="invalid"):
        ledger().merge([sign_notice(OLD, replace(notice, **{field: changed}))], NOW)


# Text and batches


def test_subjects() -> None:
    assert parse_subject(f"{VICTIM:032X}") == SUBJECT
    assert parse_subject(SUBJECT) == SUBJECT
    assert parse_subject("f" * 40) == "serial:" + "f" * 40
    for bad in ("", "f" * 31, "g" * 32, "node:" + "f" * 41):
        with pytest.raises(ValueError, match="expected a node id"):
            parse_subject(bad)


def test_a_record_can_be_carried_as_text() -> None:
    signed = change()
    assert parse_notice_text(notice_text(signed) + "\n") == signed
    for bad in ("", "%", "AAAA", notice_text(signed)[:-8]):
        with pytest.raises(ValueError, match=r".*"):
            parse_notice_text(bad)


def test_batches_fit_a_frame_and_keep_the_order() -> None:
    notices = [sign_notice(OLD, denial(subject=f"node:{number:032x}")) for number in range(300)] + [change()] * 60
    cut = batches(notices)
    assert [notice for batch in cut for notice in batch] == notices
    assert len(cut) > 1
    for batch in cut:
        encode_body(TrustNotices(batch))  # raises when it is over the cap
    assert batches([]) == []

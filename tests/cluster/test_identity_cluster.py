"""Joining, renewing, denying and rotating with real daemons on loopback, in this process."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import load_pem_x509_certificate
from msgspec import structs

from peerd.api import Priority
from peerd.daemon.identity.manager import ANSWER_TIMEOUT_S, ROTATION_SPREAD_S_MAX, IdentityManager
from peerd.daemon.links.link import TRUST_REQUESTS_BURST
from peerd.daemon.service import Daemon
from peerd.errors import ConfigError, PeerdError, Unavailable
from peerd.identity.authority import ClusterAuthority, create_node_files
from peerd.identity.joining import JoinFailed, NotOurCluster, join, return_to_cluster, write_identity
from peerd.identity.ledger import sign_notice
from peerd.identity.node_identity import load_certificate, load_private_key
from peerd.identity.tokens import JoinToken
from peerd.ids import format_id
from peerd.linking.join_limits import REFUSAL_FORGOTTEN_S, REFUSALS_PER_HOST
from peerd.wire.codec import encode
from peerd.wire.enrolment import PREFACE, EnrolmentRequest, JoinGranted, JoinOffer, RenewAnswer, RenewRequest
from peerd.wire.trust import Denial, TrustNotices, TrustSummary
from tests.support.both_loops import both_loops
from tests.support.link_rig import until
from tests.support.site import Site, is_complete

PATIENCE_S = 20.0


class Cluster(Site):
    """A site whose node "a" issues."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.authority.save(path / "ca")

    def issuer(self, bootstrap: list[str] | None = None) -> Daemon:
        return self.daemon("a", bootstrap, issuer__enabled=True, issuer__ca_dir=str(self.path / "ca"))

    async def newcomer(self, name: str, seed: Daemon, issuer: Daemon) -> Daemon:
        """Made with a token, as `peerd join` makes it, and not started."""
        token = new_token(issuer)
        membership = await asyncio.to_thread(join, "127.0.0.1", seed.peer.port, token)
        write_identity(self.path / name, membership)
        return self.daemon(name, [seed.peer.address])


def manager(daemon: Daemon) -> IdentityManager:
    assert daemon.identity is not None
    return daemon.identity


def new_token(issuer: Daemon, uses: int = 1) -> JoinToken:
    office = manager(issuer).issuer
    assert office is not None
    return office.create_token(3600, uses)[0]


async def knows_an_issuer(*daemons: Daemon) -> None:
    await until(lambda: all(manager(each).offer().issuers for each in daemons), PATIENCE_S)


async def failure(attempt: Callable[[], Awaitable[object]]) -> PeerdError:
    with pytest.raises(PeerdError) as caught:
        await attempt()
    return caught.value


@both_loops
async def test_a_token_makes_a_node_of_the_ring(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    async with cluster.issuer() as one, await cluster.newcomer("b", one, one) as two:
        await until(lambda: is_complete(one, two), PATIENCE_S)
        await knows_an_issuer(two)
        # A node that is no issuer leads the newcomer to one.
        async with await cluster.newcomer("c", two, one) as three:
            await until(lambda: is_complete(one, two, three), PATIENCE_S)


async def test_tokens_that_open_nothing_say_why(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    async with cluster.issuer() as one:
        good = new_token(one)

        def attempt(token: JoinToken, port: int = 0) -> Callable[[], Awaitable[object]]:
            return lambda: asyncio.to_thread(join, "127.0.0.1", port or one.peer.port, token)

        await attempt(good)()
        assert "1 of 1 times" in str(await failure(attempt(good)))
        assert "does not know the token" in str(await failure(attempt(replace(good, secret=bytes(16)))))
        wrong_cluster = await failure(attempt(replace(good, cluster="other")))
        assert isinstance(wrong_cluster, JoinFailed) and "'other'" in str(wrong_cluster)
        assert isinstance(await failure(attempt(replace(good, fingerprint=bytes(16)))), NotOurCluster)
        assert isinstance(await failure(attempt(good, 1)), Unavailable)
    async with cluster.daemon("alone") as no_issuer:
        unserved = await failure(attempt(good, no_issuer.peer.port))
        assert isinstance(unserved, Unavailable) and "does not issue" in str(unserved)


async def test_a_host_that_tries_tokens_is_not_even_looked_at(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    async with cluster.issuer() as one:
        context, frozen = one.links.context, one.links.context.now()
        context.now = lambda: frozen  # no refusal is forgotten meanwhile, however slow this machine is
        good = new_token(one)

        def attempt(token: JoinToken) -> Awaitable[object]:
            return asyncio.to_thread(join, "127.0.0.1", one.peer.port, token)

        for number in range(int(REFUSALS_PER_HOST)):
            error = await failure(partial(attempt, replace(good, secret=bytes([number] * 16))))
            assert isinstance(error, JoinFailed)
        late = await failure(lambda: attempt(good))
        assert isinstance(late, Unavailable) and "too many refused attempts from 127.0.0.1" in str(late)
        assert 'peerd_joins_refused_total{reason="throttled"} 1.0' in one.metrics.render().decode()
        context.now = lambda: frozen + REFUSAL_FORGOTTEN_S
        await attempt(good)


async def test_somebody_in_between_gets_no_secret(tmp_path: Path) -> None:
    """It passes the real roots and notices on, which are public, and then has no certificate that leads to them."""
    cluster, impostor = Cluster(tmp_path / "real"), Cluster(tmp_path / "false")
    async with impostor.issuer() as false:
        async with cluster.issuer() as real:
            await knows_an_issuer(real)
            truth = manager(real).offer()
            token = new_token(real)
        heard = overhear(false, truth)
        # The real issuer is down, so that the newcomer cannot go on to it.
        error = await failure(lambda: asyncio.to_thread(join, "127.0.0.1", false.peer.port, token))
        assert isinstance(error, NotOurCluster) and "Nothing secret was sent" in str(error)
        assert heard == []


async def test_a_member_that_only_says_it_issues_gets_no_secret(tmp_path: Path) -> None:
    """The member's certificate is good, but the CA does not name it as an issuer; the newcomer asks a real one."""
    cluster = Cluster(tmp_path)
    async with cluster.issuer() as one, await cluster.newcomer("liar", one, one) as liar:
        await knows_an_issuer(liar)
        heard = overhear(liar, structs.replace(manager(liar).offer(), is_issuer=True))
        membership = await asyncio.to_thread(join, "127.0.0.1", liar.peer.port, new_token(one))
        assert heard == []
        assert membership.bootstrap[0] == one.peer


def overhear(liar: Daemon, offer: JoinOffer) -> list[EnrolmentRequest]:
    """Have a daemon make this offer, and take whatever secret it gets to see."""
    heard: list[EnrolmentRequest] = []

    def listen(request: EnrolmentRequest, address: str) -> JoinGranted:
        heard.append(request)
        raise Unavailable("thanks")

    false = manager(liar)
    false.offer = lambda: offer  # type: ignore[method-assign]  # the lie
    false.enrolment_context = false._make_enrolment_context  # type: ignore[method-assign]  # as if it issued
    false.enrol = listen  # type: ignore[method-assign]  # what it is after
    return heard


@both_loops
async def test_a_token_is_found_at_the_issuer_that_made_it(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    async with (
        cluster.issuer() as one,
        cluster.daemon("b", [one.peer.address], issuer__enabled=True, issuer__ca_dir=str(cluster.path / "ca")) as two,
    ):
        await until(lambda: all(len(manager(each).offer().issuers) == 2 for each in (one, two)), PATIENCE_S)
        for seed in (one, two):
            await asyncio.to_thread(join, "127.0.0.1", seed.peer.port, new_token(one))


@both_loops
async def test_a_token_of_before_a_rotation_still_opens(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    async with cluster.issuer() as one:
        before = new_token(one)
        manager(one).rotate(timedelta(days=1))
        for token in (before, new_token(one)):
            membership = await asyncio.to_thread(join, "127.0.0.1", one.peer.port, token)
            assert membership.roots == manager(one).ledger.roots


@both_loops
async def test_the_newcomers_door_holds_against_strangers(tmp_path: Path) -> None:
    """Half a preface, a wrong one, silence after it, garbage inside TLS: each loses its connection, nothing else."""
    cluster = Cluster(tmp_path)

    def knock(*sent: bytes, tls: bool = False) -> bytes:
        with socket.create_connection(("127.0.0.1", one.peer.port), timeout=PATIENCE_S) as sock:
            sock.sendall(sent[0])
            if tls:
                sock.recv(64 * 1024)
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                with context.wrap_socket(sock) as inside:
                    for part in sent[1:]:
                        inside.sendall(part)
                    with suppress(ssl.SSLError, ConnectionResetError):
                        return inside.recv(1)
                    return b""
            received = b""
            with suppress(ConnectionResetError):
                while chunk := sock.recv(4096):
                    received += chunk
            return received

    async with cluster.issuer() as one:
        context = one.links.context
        patient = context.settings
        context.settings = replace(patient, tls_handshake_timeout_s=0.5, hello_timeout_s=0.5)
        assert await asyncio.to_thread(knock, PREFACE[:4]) == b""
        assert await asyncio.to_thread(knock, b"p" * len(PREFACE)) == b""
        assert len(await asyncio.to_thread(knock, PREFACE)) > 100  # the offer, and then nothing for who says nothing
        assert await asyncio.to_thread(knock, PREFACE, b"\xff" * 64, tls=True) == b""
        assert await asyncio.to_thread(knock, PREFACE, b"\x51\x00\x07\x00\xff\xff\xff\xff", tls=True) == b""
        await until(lambda: one._listener.handshakes == 0, PATIENCE_S)
        context.settings = patient
        await asyncio.to_thread(join, "127.0.0.1", one.peer.port, new_token(one))


@both_loops
async def test_renewal_is_picked_up_without_a_restart(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    async with cluster.issuer() as one, await cluster.newcomer("b", one, one) as two:
        await until(lambda: is_complete(one, two), PATIENCE_S)
        await knows_an_issuer(two)
        await until(lambda: len(one.links) == len(two.links) == 1, PATIENCE_S)
        before = manager(two).identity
        link = two.links.link_to(one.peer.id)
        after = await asyncio.wait_for(manager(two).renewed(), PATIENCE_S)
        assert after.serial != before.serial and after.node_id == before.node_id == two.peer.id
        assert two.links.link_to(one.peer.id) is link
        # The next handshake shows the new one.
        assert link is not None
        two.links.disconnect(one.peer, "test")

        def seen() -> int | None:
            again = one.links.link_to(two.peer.id)
            return again.certificate.serial if again is not None and again.certificate is not None else None

        two.links.dial("127.0.0.1", one.peer.port, lambda peer: None)
        await until(lambda: seen() == after.serial, PATIENCE_S)


async def test_renewal_happens_by_itself_when_it_is_due(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    async with cluster.issuer() as one, await cluster.newcomer("b", one, one) as two:
        await until(lambda: is_complete(one, two), PATIENCE_S)
        await knows_an_issuer(two)
        before = manager(two).identity.serial
        manager(two).clock.due_at = 0.0
        await until(lambda: manager(two).identity.serial != before, PATIENCE_S)
        assert manager(two).renewal_state == "ok"


async def test_a_renewal_takes_only_what_is_this_nodes(tmp_path: Path) -> None:
    """An issuer is trusted to say who is in, not to make a node somebody else or take it off the ring."""
    cluster = Cluster(tmp_path)
    async with cluster.issuer() as one, await cluster.newcomer("b", one, one) as two:
        office, mine = manager(one).issuer, manager(two).identity
        assert office is not None

        def made(
            authority: ClusterAuthority, *, salt: bytes | None = mine.salt, lifetime: timedelta = timedelta(days=1)
        ) -> bytes:
            pem = authority.issue(mine.public_key, lifetime, salt=salt)
            return load_pem_x509_certificate(pem).public_bytes(Encoding.DER)

        before = (tmp_path / "b" / "node.crt").read_bytes()
        for bad in (
            (),
            (b"x",),
            (made(office.authority, salt=None),),
            (made(ClusterAuthority.create("test")),),
            (made(office.authority, lifetime=timedelta(milliseconds=1)),),
            office.renew(manager(one).identity).chain,
        ):
            with pytest.raises(ConfigError):
                manager(two).install(bad)
            assert manager(two).identity == mine
            assert (tmp_path / "b" / "node.crt").read_bytes() == before
        manager(two).install((made(office.authority),))
        assert manager(two).identity.serial != mine.serial


async def test_files_that_vanish_or_cannot_be_written_cost_a_warning(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    async with cluster.issuer() as one, await cluster.newcomer("b", one, one) as two:
        await until(lambda: is_complete(one, two), PATIENCE_S)
        await knows_an_issuer(two)
        (tmp_path / "b" / "node.key").unlink()
        with pytest.raises(Unavailable, match=r"node\.key"):
            await manager(two).renewed()
        manager(one).rotate(timedelta(days=1))
        await until(lambda: len(manager(two).ledger.roots.trusted) == 2, PATIENCE_S)
        manager(two).tick()
        assert manager(two).renewal_state == "warning"
        await until(lambda: is_complete(one, two), PATIENCE_S)


async def test_renewal_without_an_issuer_warns_and_goes_on(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    async with cluster.daemon("alone") as one:
        with pytest.raises(Unavailable, match="no issuer is known"):
            await manager(one).renewed()
        assert manager(one).renewal_state == "warning"
        assert manager(one).clock.due_at > manager(one).wall_time()


@both_loops
async def test_a_node_that_was_off_past_its_end_comes_back_as_itself(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    async with cluster.issuer() as one:
        node_id = create_node_files(cluster.authority, tmp_path / "b", lifetime=timedelta(milliseconds=1))
        async with cluster.daemon("b", [one.peer.address]) as two:
            await until(lambda: is_complete(one, two), PATIENCE_S)
            assert two.peer.id == node_id
            assert manager(two).renewal_state == "ok"
        denied_id = create_node_files(cluster.authority, tmp_path / "thief", lifetime=timedelta(milliseconds=1))
        manager(one).deny(f"node:{format_id(denied_id)}", "stolen", is_withdrawn=False)
        async with cluster.daemon("thief", [one.peer.address]) as thief:
            await until(lambda: "deny list" in manager(thief).last_failure, PATIENCE_S)
            assert manager(thief).renewal_state == "expired"


@both_loops
async def test_a_denied_node_is_out_everywhere_and_after_restarts(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    async with cluster.issuer() as one:
        thief = await cluster.newcomer("thief", one, one)
        asleep = await cluster.newcomer("asleep", one, one)
        async with await cluster.newcomer("b", one, one) as two, thief:
            await until(lambda: is_complete(one, two, thief), PATIENCE_S)
            manager(one).deny(f"node:{format_id(thief.peer.id)}", "stolen", is_withdrawn=False)
            await until(lambda: is_complete(one, two), PATIENCE_S)
            assert thief.peer.id in manager(two).ledger.denied_ids()
            await until(lambda: not thief.links.links(), PATIENCE_S)
            for daemon in (one, two):
                assert daemon.node.overlay.missing_members() == ()
                assert {peer.id for peer in daemon.node.overlay.expected_members()} == {one.peer.id, two.peer.id}
            # The thief is told why its links end, and does not take itself for a ring.
            await until(lambda: "deny list" in (thief.node.overlay.outside_reason() or ""), PATIENCE_S)
        async with cluster.daemon("b", [one.peer.address]) as two:
            assert thief.peer.id in two.links.context.denied  # from its disk, before anybody told it
            await until(lambda: is_complete(one, two), PATIENCE_S)
            # Who was down when it happened learns it from the neighbour that it meets first.
            async with asleep:
                await until(lambda: thief.peer.id in asleep.links.context.denied, PATIENCE_S)
                await until(lambda: is_complete(one, two, asleep), PATIENCE_S)
                manager(one).deny(f"node:{format_id(thief.peer.id)}", "found again", is_withdrawn=True)
                await until(lambda: not asleep.links.context.denied, PATIENCE_S)
            async with cluster.daemon("thief", [two.peer.address]) as back:
                await until(lambda: is_complete(one, two, back), PATIENCE_S)


async def test_a_denied_certificate_is_out_and_its_renewal_in(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    async with cluster.issuer() as one, await cluster.newcomer("b", one, one) as two:
        await until(lambda: is_complete(one, two), PATIENCE_S)
        await knows_an_issuer(two)
        before = manager(two).identity.serial
        await asyncio.wait_for(manager(two).renewed(), PATIENCE_S)
        manager(one).deny(f"serial:{before:040x}", "key copied", is_withdrawn=False)

        def serial_seen() -> int | None:
            link = one.links.link_to(two.peer.id)
            return link.certificate.serial if link is not None and link.certificate is not None else None

        # The link was made with the old certificate; the next one is made with the new.
        after = manager(two).identity.serial
        await until(lambda: serial_seen() == after and is_complete(one, two), PATIENCE_S)


async def test_a_denial_of_an_issuer_that_slept_through_a_rotation_outlives_the_old_root(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    async with cluster.issuer() as one:
        office = manager(one)
        assert office.issuer is not None
        old, victim = office.issuer.authority, "node:" + "ab" * 16
        office.rotate(timedelta(days=1))
        version = office.ledger.next_version(f"deny {victim}", office.wall_time())
        office.accept_notice(sign_notice(old, Denial(cluster.authority.cluster, version, victim, False, "stolen")))
        office.tick()
        week = office.wall_time() + 7 * 86_400
        assert office.ledger.expire(week)
        assert [denial.subject for denial in office.ledger.denials()] == [victim]


async def test_a_clock_that_was_set_back_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(tmp_path)
    async with cluster.issuer() as one, cluster.daemon("b", [one.peer.address]) as two:
        await knows_an_issuer(two)
        node = manager(two)
        wall, steady = node.wall_time, node._steady_s
        monkeypatch.setattr(two.links, "send", lambda *message: None)  # nobody will answer
        node._renew()
        assert node._asked is not None
        node.wall_time = lambda: wall() - 10 * 86_400.0
        node._steady_s = lambda: steady() + ANSWER_TIMEOUT_S + 1
        node.tick()
        assert "no answer" in node.last_failure


async def test_a_restart_within_the_overlap_does_not_forget_to_renew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path)
    async with cluster.issuer() as one, cluster.daemon("b", [one.peer.address]) as two:
        await knows_an_issuer(two)
        monkeypatch.setattr(manager(two), "_renew", lambda: None)  # it is stopped before it comes to that
        manager(one).rotate(timedelta(days=7))
        await until(lambda: manager(two)._roots_in_use.previous is not None, PATIENCE_S)
        await two.stop()
        async with cluster.daemon("b") as again:
            now = manager(again).wall_time()
            assert manager(again).clock.expires_at - now > 80 * 86_400
            assert manager(again).clock.due_at - now <= ROTATION_SPREAD_S_MAX


async def test_a_bug_on_the_way_back_waits_like_any_failure(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    async with cluster.daemon("a") as one:
        node = manager(one)
        with pytest.raises(ZeroDivisionError):
            node._return_failed(ZeroDivisionError("a bug"))
        assert node.last_failure == "a bug" and not node.clock.is_due(node.wall_time())


async def test_who_comes_back_to_another_ca_is_told_what_happened(tmp_path: Path) -> None:
    cluster, renewed = Cluster(tmp_path / "old"), Cluster(tmp_path / "new")
    async with cluster.daemon("b") as sleeper:
        files = manager(sleeper).files
        key, leaf = load_private_key(files.key_file), load_certificate(files.cert_file)
    async with renewed.issuer() as one:
        seeds, roots = [("127.0.0.1", one.peer.port)], cluster.authority.roots
        name = cluster.authority.cluster
        error = await failure(lambda: asyncio.to_thread(return_to_cluster, seeds, key, leaf, name, roots))
    assert isinstance(error, NotOurCluster) and "join again, with a token" in str(error)


@both_loops
async def test_the_root_changes_under_load_and_nobody_is_lost(tmp_path: Path) -> None:
    """Links stay, lookups go on, who was down comes back within the overlap, and nobody after it."""
    cluster = Cluster(tmp_path)
    async with cluster.issuer() as one:
        asleep = await cluster.newcomer("asleep", one, one)
        late = await cluster.newcomer("late", one, one)
        async with await cluster.newcomer("b", one, one) as two:
            await until(lambda: is_complete(one, two), PATIENCE_S)
            await until(lambda: len(one.links) == len(two.links) == 1, PATIENCE_S)
            link = two.links.link_to(one.peer.id)
            lookups: list[bool] = []

            def look_up(number: int) -> None:
                two.node.hosts["overlay"].lookup(
                    two.peer.id if number % 2 else one.peer.id, lambda result: lookups.append(result.root is not None)
                )

            for number in range(50):
                look_up(number)
            manager(one).rotate(timedelta(days=1))
            for number in range(50):
                look_up(number)
            await until(lambda: manager(two).ledger.roots == manager(one).ledger.roots, PATIENCE_S)
            await asyncio.wait_for(manager(two).renewed(), PATIENCE_S)
            await until(lambda: len(lookups) == 100, PATIENCE_S)
            assert all(lookups)
            assert two.links.link_to(one.peer.id) is link
            async with asleep:  # it knows the old root only, and so does its certificate
                await until(lambda: is_complete(one, two, asleep), PATIENCE_S)
                await until(lambda: manager(asleep).ledger.roots == manager(one).ledger.roots, PATIENCE_S)
                await asyncio.wait_for(manager(asleep).renewed(), PATIENCE_S)
            # The overlap is over.
            for each in (one, two):
                at = manager(each).wall_time()
                manager(each).wall_time = lambda at=at: at + 2 * 86_400  # type: ignore[misc]  # the day after tomorrow
                manager(each).tick()
                assert manager(each).ledger.roots.previous is None
            async with late:
                refused = 'peerd_connections_refused_total{reason="bad_certificate"}'
                await until(lambda: refused in one.metrics.render().decode(), PATIENCE_S)
                assert not late.node.is_ready
            assert two.links.link_to(one.peer.id) is link
    # Another start reads what was written.
    async with cluster.issuer() as one, cluster.daemon("b", [one.peer.address]) as two:
        await until(lambda: is_complete(one, two), PATIENCE_S)


async def test_a_forged_record_costs_its_sender_the_link_and_changes_nothing(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    async with cluster.issuer() as one, await cluster.newcomer("b", one, one) as two:
        await until(lambda: is_complete(one, two), PATIENCE_S)
        await knows_an_issuer(two)
        victim = Denial("test", 2**60, f"node:{format_id(one.peer.id)}", False, "forged")
        stranger = sign_notice(ClusterAuthority.create("test"), victim)
        forged = structs.replace(stranger, signer=cluster.authority.fingerprint)
        two.links.send(one.peer, encode(TrustNotices((stranger,))), Priority.NORMAL)  # of an unknown root: dropped
        two.links.send(one.peer, encode(TrustNotices((forged,))), Priority.NORMAL)
        refused = 'peerd_peer_misbehaviour_total{reason="bad_signature"}'
        await until(lambda: refused in one.metrics.render().decode(), PATIENCE_S)
        assert manager(one).ledger.denials() == manager(two).ledger.denials() == []
        await until(lambda: is_complete(one, two), PATIENCE_S)  # once is no ban


async def test_a_member_cannot_make_others_repeat_themselves(tmp_path: Path) -> None:
    """A question of forty bytes is answered with every notice, or with a signature; so few a link are."""
    cluster = Cluster(tmp_path)
    async with cluster.issuer() as one, await cluster.newcomer("b", one, one) as two:
        await until(lambda: is_complete(one, two), PATIENCE_S)
        await knows_an_issuer(two)
        asked = 60
        for number in range(asked):
            two.links.send(one.peer, encode(TrustSummary(bytes([number]) * 32)), Priority.NORMAL)
            two.links.send(one.peer, encode(RenewRequest()), Priority.NORMAL)
        answers: list[int] = []
        two.links.on_trust_frame = lambda link, frame: answers.append(frame[0])
        await until(lambda: answers.count(RenewAnswer.TYPE_ID) == asked, PATIENCE_S)
        assert 1 <= answers.count(TrustNotices.TYPE_ID) <= 2 * TRUST_REQUESTS_BURST
        issued = [line for line in one.metrics.render().decode().splitlines() if 'kind="renewal"' in line]
        assert issued and float(issued[0].rpartition(" ")[2]) <= 2 * TRUST_REQUESTS_BURST

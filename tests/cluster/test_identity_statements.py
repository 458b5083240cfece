"""What daemons say through others, while certificates are renewed, nodes are denied and the CA changes."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from peerd.daemon.service import Daemon
from peerd.ids import format_id
from tests.cluster.test_identity_cluster import PATIENCE_S, Cluster, knows_an_issuer, manager
from tests.support.link_rig import until
from tests.support.site import is_complete

SAID = b"something"


def believes(reader: Daemon, signer: Daemon, proof: bytes) -> bool:
    return reader.driver.verify(signer.peer.id, "test", SAID, proof)


async def test_proofs_outlive_renewals_and_end_with_a_denial(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    async with cluster.issuer() as one, cluster.daemon("b", [one.peer.address]) as two:
        await until(lambda: is_complete(one, two), PATIENCE_S)
        await knows_an_issuer(two)
        before = two.driver.sign("test", SAID)
        assert believes(one, two, before) and believes(two, two, before)
        assert not believes(one, one, before)
        await manager(two).renewed()
        after = two.driver.sign("test", SAID)
        assert after != before, "it has the new certificate"
        assert believes(one, two, before) and believes(one, two, after)
        manager(one).deny(f"node:{format_id(two.peer.id)}", "it lies", is_withdrawn=False)
        assert not believes(one, two, before) and not believes(one, two, after)
        checked = one.metrics.registry.get_sample_value("peerd_proofs_checked_total", {"outcome": "invalid"})
        assert checked == 3


async def test_proofs_under_both_roots_count_until_the_old_one_ends(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    async with cluster.issuer() as one, cluster.daemon("b", [one.peer.address]) as two:
        await until(lambda: is_complete(one, two), PATIENCE_S)
        await knows_an_issuer(two)
        old = two.driver.sign("test", SAID)
        manager(one).rotate(timedelta(days=1))
        assert believes(one, two, old)
        await until(lambda: manager(two).ledger.roots.newest == manager(one).ledger.roots.newest, PATIENCE_S)
        await manager(two).renewed()
        new = two.driver.sign("test", SAID)
        assert believes(one, two, old) and believes(one, two, new)
        ended = manager(one).wall_time() + 2 * 86_400
        assert manager(one).ledger.expire(ended)
        assert not believes(one, two, old) and believes(one, two, new)

"""Links do not outlive their certificates, nor a bounded age, and nothing is lost when one is made anew."""

from __future__ import annotations

import time
from dataclasses import replace

from peerd.ids import format_id
from peerd.telemetry.schema import LinkDown, LinkUp
from tests.support.both_loops import both_loops
from tests.support.link_rig import FAST, Rig, linked, until


@both_loops
async def test_an_old_link_is_made_anew_and_loses_nothing() -> None:
    async with Rig(tls=True, settings=replace(FAST, link_age_max_s=0.2)) as rig:
        one, two = rig.add(), rig.add()
        await linked(one, two)
        sent = 0

        def keep_talking() -> bool:
            nonlocal sent
            sent += 1
            one.note(two.ref, sent)
            return len(one.node.of(LinkUp)) >= 4

        await until(keep_talking, 20.0)
        await until(lambda: len(two.node.numbers(one.ref)) == sent, 20.0)
        assert two.node.numbers(one.ref) == list(range(1, sent + 1))
        assert {event.reason for event in one.node.of(LinkDown)} <= {"recycled", "goodbye:recycled"}
        assert (one.node.down, two.node.down) == ([], [])


@both_loops
async def test_a_link_ends_a_while_after_the_peers_certificate() -> None:
    async with Rig(tls=True) as rig:
        one, two = rig.add(), rig.add()
        await linked(one, two)
        link = one.links.link_to(two.ref.id)
        assert link is not None and link.certificate is not None
        ends_at = link.certificate.not_after.timestamp()
        one.context.wall_time = lambda: ends_at + FAST.expiry_grace_s - 1
        link.sweep(one.context.now())
        assert link.is_up
        one.context.wall_time = lambda: ends_at + FAST.expiry_grace_s + 1
        link.sweep(one.context.now())
        assert not link.is_up
        await until(lambda: "expired" in [event.reason for event in one.node.of(LinkDown)])
        one.context.wall_time = time.time


@both_loops
async def test_a_denied_serial_ends_its_link_and_no_other() -> None:
    async with Rig(tls=True) as rig:
        one, two, three = rig.add(), rig.add(), rig.add()
        await linked(two, one)
        await linked(three, one)
        link = one.links.link_to(two.ref.id)
        assert link is not None and link.certificate is not None
        one.links.deny(frozenset(), frozenset({link.certificate.serial}))
        await until(lambda: two.node.down)
        assert two.node.down == [(one.ref, "denied")]
        assert [event.peer for event in one.node.of(LinkDown)] == [format_id(two.ref.id)]
        assert one.links.link_to(three.ref.id) is not None

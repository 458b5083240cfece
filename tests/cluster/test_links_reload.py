"""Limits of links change while the links are up, and no link ends for it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from peerd.linking.settings import LinkSettings
from peerd.telemetry.schema import LinkDown, LinkUp
from tests.support.both_loops import both_loops
from tests.support.link_rig import FAST, Peer, Rig, linked, until

STRICT = replace(FAST, messages_per_second=20.0, messages_burst=20)


def reconfigure(peer: Peer, settings: LinkSettings) -> None:
    peer.links.reconfigure(settings)
    peer.listener.reconfigured()


@both_loops
async def test_another_message_rate_holds_for_the_link_that_is_up() -> None:
    async with Rig(settings=STRICT) as rig:
        one, two = rig.pair()
        await linked(one, two)
        reconfigure(two, replace(STRICT, messages_per_second=100_000.0, messages_burst=100_000))
        await asyncio.sleep(0)
        for number in range(400):
            one.note(two.ref, number)
        await until(lambda: len(two.node.numbers(one.ref)) == 400)
        assert not two.node.of(LinkDown) and len(two.node.of(LinkUp)) == 1

        reconfigure(two, STRICT)
        for number in range(400):
            one.note(two.ref, number)
        await until(lambda: two.node.of(LinkDown))
        assert two.node.of(LinkDown)[0].reason == "misbehaved"


@both_loops
async def test_a_lower_number_of_links_ends_none_and_keeps_newcomers_out() -> None:
    async with Rig() as rig:
        one, two, three = rig.add(1), rig.add(2), rig.add(3)
        await linked(one, two)
        reconfigure(two, replace(FAST, links_max=1))
        three.note(two.ref, 7)
        await until(lambda: three.links.dial_failures or three.node.down)
        assert two.links.is_linked(one.ref) and not two.links.is_linked(three.ref)
        assert not two.node.of(LinkDown)
        reconfigure(two, FAST)
        three.note(two.ref, 8)
        await until(lambda: 8 in two.node.numbers(three.ref))
        assert two.links.is_linked(one.ref)


@both_loops
async def test_a_smaller_send_queue_holds_for_peers_that_are_known() -> None:
    async with Rig() as rig:
        one, two = rig.pair()
        await linked(one, two)
        reconfigure(one, replace(FAST, send_queue_bytes_max=64 * 1024))
        for number in range(40):
            one.note(two.ref, number, data=bytes(50_000))
        assert one.links.queued_bytes(two.ref) <= 64 * 1024
        await until(lambda: two.node.numbers(one.ref))
        assert len(two.node.numbers(one.ref)) < 40

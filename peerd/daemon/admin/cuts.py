"""The admin API's route that cuts links on purpose, for drills on a cluster that is all on one machine.

For the nodes on both sides it is as if the network between them had failed: links end, and no new ones are made. It is
forgotten when the daemon ends. A daemon that others can reach refuses it: on a real network that is a weapon.
"""

from __future__ import annotations

from http import HTTPStatus

from fastapi import APIRouter, HTTPException

from peerd.config import is_loopback, split_address
from peerd.daemon.admin.subject import Subject
from peerd.ids import parse_id
from peerd.models.admin import LinkCuts


def cuts_router(daemon: Subject) -> APIRouter:
    """The route about links that are cut."""
    router = APIRouter()

    @router.put("/links/cut")
    async def cut(wanted: LinkCuts) -> LinkCuts:
        """Have no link with these nodes from now on, and with all others again; an empty list heals everything."""
        config = daemon.loaded.config
        if not is_loopback(split_address(config.node.listen)[0]) or config.tls.mode != "mutual":
            why = "links are cut for drills only: on a daemon that listens on loopback (node.listen), with mutual TLS"
            raise HTTPException(HTTPStatus.CONFLICT, why)
        own = daemon.node.peer.id
        daemon.links.cut(frozenset(parse_id(node) for node in wanted.nodes) - {own})
        return wanted

    return router

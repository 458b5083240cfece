"""The admin API's routes about members: links with them are cut, and missing ones will not come back."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from fastapi import APIRouter, HTTPException

from peerd.api import MissingMember
from peerd.config import is_loopback, split_address
from peerd.daemon.admin.subject import Subject
from peerd.daemon.admin.view import AmbiguousNode, UnknownNode, match
from peerd.daemon.http.routes import serve
from peerd.errors import Unavailable
from peerd.ids import NodeId, format_id, parse_id
from peerd.models import routes
from peerd.models.admin import ForgetRequest, Forgotten, ForgottenNode, LinkCuts

PREFIX_DIGITS_MIN: Final = 4
"""As `peerd deny` wants them: fewer digits are easily those of two nodes, and digits of two are refused."""


class StillHere(UnknownNode):
    """The node that the operator named is not missing, so there is nothing to forget."""


def members_router(daemon: Subject) -> APIRouter:
    """The routes about members of the ring."""
    router = APIRouter()

    # For drills: on both sides it is as if the network between them had failed, until the daemon ends. A daemon that
    # others can reach refuses it: on a real network that is a weapon.
    @serve(router, routes.CUT_LINKS)
    async def cut(wanted: LinkCuts) -> LinkCuts:
        """Have no link with these nodes from now on, and with all others again; an empty list heals everything."""
        config = daemon.loaded.config
        if not is_loopback(split_address(config.node.listen)[0]) or config.tls.mode != "mutual":
            why = "links are cut for drills only: on a daemon that listens on loopback (node.listen), with mutual TLS"
            raise HTTPException(HTTPStatus.CONFLICT, why)
        own = daemon.node.peer.id
        daemon.links.cut(frozenset(parse_id(node) for node in wanted.nodes) - {own})
        return wanted

    @serve(router, routes.FORGET)
    async def forget(wanted: ForgetRequest) -> Forgotten:
        """Stop expecting a missing node, or all of them, everywhere; if it comes back, it is expected again."""
        if (wanted.node is None) != wanted.all_missing:
            raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, "expected either node or all_missing")
        overlay = daemon.node.overlay
        if (outside := overlay.outside_reason()) is not None:
            raise Unavailable(f"{outside}: forget on a node that is in the ring")
        missing = {member.peer.id: member for member in overlay.missing_members()}
        try:
            chosen = list(missing) if wanted.node is None else [find_missing(daemon, wanted.node, missing)]
        except StillHere as error:
            raise HTTPException(HTTPStatus.CONFLICT, str(error)) from error
        except UnknownNode as error:
            raise HTTPException(HTTPStatus.NOT_FOUND, str(error)) from error
        overlay.forget(chosen)
        return Forgotten(nodes=[_forgotten(node_id, missing.get(node_id)) for node_id in chosen])

    return router


def find_missing(daemon: Subject, text: str, missing: dict[NodeId, MissingMember]) -> NodeId:
    """The missing node that an id, a prefix of it or an address names; a whole id may be missing far from here.

    Raises `UnknownNode`, and `StillHere` for a node that is in the ring.
    """
    node = daemon.node
    here = {peer.id: peer for peer in (node.peer, *node.overlay.leaf_set().members(), *node.overlay.table_peers())}
    peers = here | {node_id: member.peer for node_id, member in missing.items()}
    wanted = text.strip().lower()
    if ":" not in wanted and len(wanted) < PREFIX_DIGITS_MIN:
        raise UnknownNode(f"{text!r} is too short: give at least {PREFIX_DIGITS_MIN} digits of the id, or host:port")
    by_address = [node_id for node_id, member in missing.items() if member.peer.address == wanted]
    if len(by_address) == 1:
        return by_address[0]  # another node may listen there meanwhile
    try:
        found = match(wanted, peers, peers)
    except AmbiguousNode:
        raise
    except UnknownNode:
        try:
            return parse_id(wanted)
        except ValueError:
            pass
        raise UnknownNode(
            f"no missing node {text!r} is known here: `peerd peers` lists them; in a large ring give the whole id, "
            "as `peerd ring --check` shows it"
        ) from None
    if found not in missing:
        raise StillHere(
            f"{format_id(found)} is not missing; `peerd drain` takes a node out, `peerd deny` shuts one out"
        )
    return found


def _forgotten(node_id: NodeId, member: MissingMember | None) -> ForgottenNode:
    if member is None:
        return ForgottenNode(id=format_id(node_id))
    return ForgottenNode(id=format_id(node_id), address=member.peer.address, lost_s=member.age_s)

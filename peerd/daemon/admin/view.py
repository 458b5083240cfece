"""The daemon's state as the admin API's models: pure reading, on the loop."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

from peerd.api import LeafSet, LookupResult
from peerd.config.reload import Change, ReloadPlan
from peerd.daemon.admin.subject import Subject
from peerd.errors import PeerdError
from peerd.ids import NodeId, format_id, key_of, parse_id
from peerd.messages import PeerRef
from peerd.models import admin as models
from peerd.node.node import Node
from peerd.overlay.messages import HistoryReply

MISSING_SHOWN_MAX: Final = 64
Place = Literal["smaller", "larger", "both", "known"]


def status(daemon: Subject) -> models.Status:
    """Return the daemon's state in one object."""
    node, config = daemon.node, daemon.loaded.config
    state = node.overlay.state
    # A node that has left keeps its last view of the ring, which says nothing about the ring of today.
    leaf_set = LeafSet((), (), is_complete=False, covers_ring=False) if node.is_stopped else node.overlay.leaf_set()
    lost = [] if node.is_stopped else missing(daemon)
    return models.Status(
        id=format_id(node.peer.id),
        address=node.peer.address,
        cluster=config.node.cluster,
        profile=config.node.profile,
        version=node.settings.version,
        boot_epoch=node.settings.boot_epoch,
        pid=os.getpid(),
        uptime_s=daemon.uptime_s,
        is_ready=node.is_ready,
        ring_size=0.0 if node.is_stopped else node.overlay.estimated_ring_size(),
        is_ring_size_exact=node.is_stopped or leaf_set.covers_ring,
        leaf_set_members=len(leaf_set.members()),
        state=_state(node),
        lease_held=state.may_serve,
        partition_suspected=state.mass_loss.is_suspected,
        outside=node.overlay.outside_reason(),
        expected=0.0 if node.is_stopped else node.overlay.estimated_members(),
        missing=len(lost),
        missing_members=lost[:MISSING_SHOWN_MAX],
        is_minority=not node.is_stopped and node.overlay.is_minority,
        absences=state.lease.absences,
        probe_period_s=node.overlay.table_care.probe_period_s(),
        draining=list(node.draining or ()),
        links=len(daemon.links.links()),
        data_addresses=list(daemon.data_addresses),
        plugins=[
            models.PluginStatus(name=name, version=plugin.version)
            for name, plugin in sorted(node.plugins.items())
            if name not in daemon.disabled_plugins
        ],
        histories=[
            models.HistoryUse(
                owner=owner, name=each.name, entries=each.entries, bytes=each.bytes, bytes_max=each.bytes_max
            )
            for owner, each in node.histories()
        ],
        certificate_expires_at=None if daemon.identity is None else daemon.identity.clock.expires_at,
        certificate_state=None if daemon.identity is None else daemon.identity.renewal_state,
    )


def _state(node: Node) -> str:
    if node.is_stopped:
        return "stopping" if node.draining is None else "drained"
    if node.draining is not None:
        return "draining"
    if not node.is_ready:
        return "joining"
    return "ready" if node.overlay.state.may_serve else "degraded"


def ring(daemon: Subject) -> models.Ring:
    """Return the leaf set and the other known nodes."""
    node = daemon.node
    leaf_set = node.overlay.leaf_set()
    places = _places(leaf_set)
    return models.Ring(
        id=format_id(node.peer.id),
        address=node.peer.address,
        ring_size=node.overlay.estimated_ring_size(),
        is_complete=leaf_set.is_complete,
        covers_ring=leaf_set.covers_ring,
        smaller=[_peer(daemon, peer, places[peer.id]) for peer in leaf_set.smaller],
        larger=[_peer(daemon, peer, places[peer.id]) for peer in leaf_set.larger],
        known=[_peer(daemon, peer, "known") for peer in _others(node, places)],
        missing=missing(daemon),
    )


def missing(daemon: Subject) -> list[models.MissingPeer]:
    """Expected members round this node that went without goodbye, in id order."""
    return [
        models.MissingPeer(id=format_id(member.peer.id), address=member.peer.address, lost_s=member.age_s)
        for member in daemon.node.overlay.missing_members()
    ]


def peers(daemon: Subject) -> list[models.Peer]:
    """Return every peer that this node knows, in id order."""
    leaf_set = daemon.node.overlay.leaf_set()
    places = _places(leaf_set)
    everybody = [*leaf_set.members(), *_others(daemon.node, places)]
    return [_peer(daemon, peer, places.get(peer.id, "known")) for peer in sorted(everybody, key=lambda other: other.id)]


def departed(daemon: Subject) -> list[models.DepartedPeer]:
    """Return every peer that this node has removed and remembers, the latest removal first."""
    state = daemon.node.overlay.state
    now = state.host.now()
    found = []
    for gone in sorted(state.departed, key=lambda each: each.removed_at, reverse=True):
        voucher = state.vouches.voucher_of(gone.peer.id, now)
        found.append(
            models.DepartedPeer(
                id=format_id(gone.peer.id),
                address=gone.peer.address,
                ago_s=now - gone.removed_at,
                has_left=gone.has_left,
                vouched_by=None if voucher is None else format_id(voucher.id),
                misbehaviour=daemon.links.misbehaviour(gone.peer.id),
            )
        )
    return found


def history(daemon: Subject, text: str) -> models.HistoryView:
    """Return the verdicts on the peer that the text names: by first digits of its id, or by its address.

    Raises `UnknownNode` when this node knows no such peer, or several, or when the text names this node.
    """
    state, own = daemon.node.overlay.state, daemon.node.peer
    known = {peer.id: peer for peer in (*(gone.peer for gone in state.departed), *state.peers(), own)}
    node_id = match(text, (*known, *state.history.peers()), known)
    if node_id == own.id:
        raise UnknownNode(f"{format_id(own.id)} is this node: ask another one with --socket")
    place: Literal["member", "entry", "departed", "unknown"] = "unknown"
    if node_id in state.leaves:
        place = "member"
    elif node_id in state.table:
        place = "entry"
    elif node_id in state.departed:
        place = "departed"
    return models.HistoryView(
        id=format_id(node_id),
        address=known[node_id].address if node_id in known else None,
        state=place,
        verdicts=verdicts(own, daemon.node.overlay.survey.history(node_id)),
    )


def verdicts(observer: PeerRef, reply: HistoryReply) -> list[models.VerdictView]:
    """Return what one node concluded about a peer."""
    return [
        models.VerdictView(
            at=note.wall_s,
            verdict=note.verdict,
            evidence=note.evidence,
            silence_s=note.silence_s,
            lag_s=note.lag_s,
            accuser=None if note.accuser is None else format_id(note.accuser),
            observer=format_id(observer.id),
        )
        for note in reply.verdicts
    ]


class UnknownNode(PeerdError):
    """The text that a user gave names no known node, or more than one."""


class AmbiguousNode(UnknownNode):
    """The text begins several ids."""


def match(text: str, ids: Iterable[NodeId], peers: Mapping[NodeId, PeerRef]) -> NodeId:
    """Return the id that is named by a full id, a unique prefix of one, or an address.

    Raises `UnknownNode` or `AmbiguousNode`.
    """
    wanted = text.strip().lower()
    found = sorted({node_id for node_id in ids if _is_meant(wanted, node_id, peers.get(node_id))})
    if len(found) == 1:
        return found[0]
    if not found:
        raise UnknownNode(f"no node {text!r} is known: give the first digits of an id, or host:port; see `peerd peers`")
    some = ", ".join(format_id(node_id)[: len(wanted) + 4] for node_id in found[:5])
    raise AmbiguousNode(f"{len(found)} nodes begin with {text!r} ({some}): give more digits")


def _is_meant(wanted: str, node_id: NodeId, peer: PeerRef | None) -> bool:
    return format_id(node_id).startswith(wanted) or (peer is not None and peer.address == wanted)


def parse_key(text: str) -> tuple[NodeId, bool]:
    """Return the key for a text, and whether it was hashed: 32 hexadecimal digits are an id, all else is a name."""
    try:
        return parse_id(text), False
    except ValueError:
        return key_of(text), True


def route(daemon: Subject, result: LookupResult, is_hashed: bool) -> models.RouteView:
    """A finished lookup."""
    places = _places(daemon.node.overlay.leaf_set())
    root = None
    if result.root is not None:
        root = _peer(daemon, result.root, places.get(result.root.id, "known"))
    return models.RouteView(
        key=format_id(result.key),
        is_hashed=is_hashed,
        root=root,
        hops=[models.Hop(id=format_id(hop.peer.id), address=hop.peer.address, rtt_s=hop.rtt_s) for hop in result.hops],
        duration_s=result.duration_s,
    )


def settings(daemon: Subject) -> models.EffectiveSettings:
    """Effective values with their origins."""
    rows = daemon.loaded.rows()
    return models.EffectiveSettings(
        settings=[models.Setting(key=key, value=value, origin=origin) for key, value, origin in rows]
    )


def reloaded(plan: ReloadPlan) -> models.ReloadAnswer:
    """Return the answer to a reload."""

    def changes(found: Sequence[Change]) -> list[models.SettingChange]:
        return [models.SettingChange(key=each.key, old=each.old, new=each.new, origin=each.origin) for each in found]

    return models.ReloadAnswer(
        applied=changes(plan.applied), needs_restart=changes(plan.needs_restart), conflict=plan.conflict
    )


def _places(leaf_set: LeafSet) -> dict[NodeId, Place]:
    places: dict[NodeId, Place] = {peer.id: "smaller" for peer in leaf_set.smaller}
    for peer in leaf_set.larger:
        places[peer.id] = "both" if peer.id in places else "larger"
    return places


def _others(node: Node, places: dict[NodeId, Place]) -> list[PeerRef]:
    return [peer for peer in node.overlay.table_peers() if peer.id not in places]


def _peer(daemon: Subject, peer: PeerRef, place: Place) -> models.Peer:
    state = daemon.node.overlay.state
    coordinate = state.coordinates.get(peer.id)
    own = state.vivaldi.current
    return models.Peer(
        id=format_id(peer.id),
        address=peer.address,
        place=place,
        rtt_s=state.proximity.rtt_s(peer.id),
        is_linked=daemon.links.link_to(peer.id) is not None,
        predicted_rtt_s=None if coordinate is None else own.rtt_s(coordinate),
        prediction_error=None if coordinate is None else max(own.error, coordinate.error),
        suspected=state.suspects.get(peer.id),
        misbehaviour=daemon.links.misbehaviour(peer.id),
    )

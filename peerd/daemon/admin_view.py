"""The daemon's state as the admin API's models: pure reading, on the loop."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final, Literal, Protocol

from peerd.admin_models import Check, Health, Hop, Peer, PluginStatus, Ring, Route, Setting, Settings, Status
from peerd.api import LeafSet, LookupResult
from peerd.config import LoadedConfig
from peerd.daemon.identity_keeper import IdentityKeeper
from peerd.daemon.renewal import RenewalState
from peerd.ids import NodeId, format_id, key_of, parse_id
from peerd.messages import PeerRef
from peerd.node import Node

LOOP_LAG_MAX_S: Final = 5.0
"""An event loop later than this does not serve; a third of it already makes neighbours suspicious."""

_CERTIFICATE_STATES: Final[Mapping[RenewalState, str]] = {
    "ok": "valid",
    "warning": "valid, and its renewal fails",
    "error": "valid for little longer, and its renewal fails",
    "expired": "expired",
}

Place = Literal["smaller", "larger", "both", "known"]


class Metrics(Protocol):
    """What the admin API needs of `peerd.telemetry.metrics.PrometheusMetrics`."""

    def render(self) -> bytes: ...


class LinkTable(Protocol):
    """What the admin API needs of `peerd.daemon.links.Links`."""

    def links(self) -> Sequence[object]: ...
    def link_to(self, peer_id: NodeId) -> object | None: ...


class Subject(Protocol):
    """What the admin API needs of `peerd.daemon.service.Daemon`."""

    @property
    def node(self) -> Node: ...
    @property
    def links(self) -> LinkTable: ...
    @property
    def loaded(self) -> LoadedConfig: ...
    @property
    def metrics(self) -> Metrics: ...
    @property
    def loop_lag_s(self) -> float:
        """How late the event loop ran its last timer."""

    @property
    def disabled_plugins(self) -> Mapping[str, str]:
        """Plugins that failed too often and are off, with their last error."""

    @property
    def uptime_s(self) -> float: ...
    @property
    def identity(self) -> IdentityKeeper | None:
        """``None`` without TLS."""


def status(daemon: Subject) -> Status:
    """Everything in one object."""
    node, config = daemon.node, daemon.loaded.config
    leaf_set = node.overlay.leaf_set()
    return Status(
        id=format_id(node.peer.id),
        address=node.peer.address,
        cluster=config.node.cluster,
        profile=config.node.profile,
        version=node.settings.version,
        boot_epoch=node.settings.boot_epoch,
        pid=os.getpid(),
        uptime_s=daemon.uptime_s,
        is_ready=node.is_ready,
        ring_size=node.overlay.estimated_ring_size(),
        is_ring_size_exact=leaf_set.covers_ring,
        leaf_set_members=len(leaf_set.members()),
        links=len(daemon.links.links()),
        plugins=[
            PluginStatus(name=name, version=plugin.version)
            for name, plugin in sorted(node.plugins.items())
            if name not in daemon.disabled_plugins
        ],
        certificate_expires_at=None if daemon.identity is None else daemon.identity.clock.expires_at,
        certificate_state=None if daemon.identity is None else daemon.identity.renewal_state,
    )


def ring(daemon: Subject) -> Ring:
    """Leaf set and other known nodes, as places on the ring."""
    node = daemon.node
    leaf_set = node.overlay.leaf_set()
    places = _places(leaf_set)
    return Ring(
        id=format_id(node.peer.id),
        address=node.peer.address,
        ring_size=node.overlay.estimated_ring_size(),
        is_complete=leaf_set.is_complete,
        covers_ring=leaf_set.covers_ring,
        smaller=[_peer(daemon, peer, places[peer.id]) for peer in leaf_set.smaller],
        larger=[_peer(daemon, peer, places[peer.id]) for peer in leaf_set.larger],
        known=[_peer(daemon, peer, "known") for peer in _others(node, places)],
    )


def peers(daemon: Subject) -> list[Peer]:
    """Everybody that this node knows, in id order."""
    leaf_set = daemon.node.overlay.leaf_set()
    places = _places(leaf_set)
    everybody = [*leaf_set.members(), *_others(daemon.node, places)]
    return [_peer(daemon, peer, places.get(peer.id, "known")) for peer in sorted(everybody, key=lambda other: other.id)]


def parse_key(text: str) -> tuple[NodeId, bool]:
    """The key that a text means, and whether it was hashed: 32 hexadecimal digits are an id, all else is a name."""
    try:
        return parse_id(text), False
    except ValueError:
        return key_of(text), True


def route(daemon: Subject, result: LookupResult, is_hashed: bool) -> Route:
    """A finished lookup."""
    places = _places(daemon.node.overlay.leaf_set())
    root = None
    if result.root is not None:
        root = _peer(daemon, result.root, places.get(result.root.id, "known"))
    return Route(
        key=format_id(result.key),
        is_hashed=is_hashed,
        root=root,
        hops=[Hop(id=format_id(hop.peer.id), address=hop.peer.address, rtt_s=hop.rtt_s) for hop in result.hops],
        duration_s=result.duration_s,
    )


def settings(daemon: Subject) -> Settings:
    """Effective values with their origins."""
    rows = daemon.loaded.rows()
    return Settings(settings=[Setting(key=key, value=value, origin=origin) for key, value, origin in rows])


def health(daemon: Subject) -> Health:
    """Every check. The first decides whether the process lives, the others whether it serves."""
    node, lag_s = daemon.node, daemon.loop_lag_s
    leaf_set = node.overlay.leaf_set()
    disabled = daemon.disabled_plugins
    members = len(leaf_set.members())
    checks = [
        Check(name="event_loop", ok=lag_s <= LOOP_LAG_MAX_S, detail=f"{lag_s:.3f} s late, at most {LOOP_LAG_MAX_S} s"),
        Check(name="running", ok=not node.is_stopped, detail="stopping" if node.is_stopped else "running"),
        Check(
            name="ring",
            ok=node.overlay.is_ready,
            detail=f"leaf set of {members} {'complete' if leaf_set.is_complete else 'not complete yet'}",
        ),
        Check(
            name="plugins",
            ok=not disabled,
            detail="; ".join(f"{name} is off: {error}" for name, error in sorted(disabled.items())) or "all on",
        ),
    ]
    if daemon.identity is not None:
        state = daemon.identity.renewal_state
        checks.append(Check(name="certificate", ok=state != "expired", detail=_CERTIFICATE_STATES[state]))
    return Health(status="ok" if all(check.ok for check in checks) else "failing", checks=checks)


def _places(leaf_set: LeafSet) -> dict[NodeId, Place]:
    places: dict[NodeId, Place] = {peer.id: "smaller" for peer in leaf_set.smaller}
    for peer in leaf_set.larger:
        places[peer.id] = "both" if peer.id in places else "larger"
    return places


def _others(node: Node, places: dict[NodeId, Place]) -> list[PeerRef]:
    return [peer for peer in node.overlay.table_peers() if peer.id not in places]


def _peer(daemon: Subject, peer: PeerRef, place: Place) -> Peer:
    return Peer(
        id=format_id(peer.id),
        address=peer.address,
        place=place,
        rtt_s=daemon.node.overlay.state.proximity.rtt_s(peer.id),
        is_linked=daemon.links.link_to(peer.id) is not None,
    )

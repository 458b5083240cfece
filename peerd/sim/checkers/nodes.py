"""Invariants of single nodes: their limits, their boot epochs, and the nodes that they declare dead."""

from __future__ import annotations

from collections import Counter
from typing import Final

from peerd import limits
from peerd.errors import Bug, ProtocolError
from peerd.ids import DIGIT_VALUES, DIGITS, NodeId, format_id, parse_id, short_id
from peerd.messages import Message, decode_body, encode_body
from peerd.node.node import Node
from peerd.overlay.departed import DEPARTED_MAX
from peerd.overlay.forwarding import HELD_MAX
from peerd.overlay.membership import LEFT, PROBES_MAX
from peerd.sim.simulation import Checker, Place, Simulation
from peerd.sim.truth import DETECT_S, HEAL_S, REPAIR_S
from peerd.telemetry.schema import Event, PeerFailed


class Boundedness(Checker):
    """No table of the simulator or of a node grows over its limit."""

    name = "boundedness"
    number = 28
    holds_always = True

    def __init__(self, events_per_node_max: int = 20_000) -> None:
        self._events_per_node_max = events_per_node_max

    def check(self, simulation: Simulation) -> list[str]:
        """Check all nodes, and the number of waiting events."""
        offences = super().check(simulation)
        if simulation.pending > self._events_per_node_max * max(len(simulation.nodes), 1):
            offences.append(f"{simulation.pending} events wait")
        return offences

    def check_node(self, simulation: Simulation, place: Place) -> list[str]:
        """Check the tables in which a node keeps other nodes."""
        overlay, state = place.node.overlay, place.node.overlay.state
        sizes = (
            ("leaf set members", len(state.leaves), limits.LEAF_SET_SIZE),
            ("table entries", len(state.table), DIGITS * DIGIT_VALUES),
            ("links", len(place.driver.links), limits.LINKS_MAX),
            ("held messages", overlay.forwarder.held, HELD_MAX),
            ("candidates", len(state.candidates), PROBES_MAX),
            ("removed peers", len(state.departed), DEPARTED_MAX),
        )
        return [f"{short_id(place.id)}: {size} {what}, limit {most}" for what, size, most in sizes if size > most]


class NodesValid(Checker):
    """Every node's own invariants hold: its ``validate`` raises nothing. Check mode asks each touched node itself."""

    name = "nodes"
    holds_always = True

    def check(self, simulation: Simulation) -> list[str]:
        """Report a `Bug` as an offence; any other exception is a mistake in ``validate`` and is raised."""
        offences = []
        for place in simulation.honest_nodes():
            try:
                place.node.validate()
            except Bug as error:
                offences.append(f"{short_id(place.id)}: {error}")
        return offences


class MonotoneEpochs(Checker):
    """A node's boot epoch grows with every start, and nobody runs twice under one id."""

    name = "epochs"
    number = 9
    holds_always = True

    def __init__(self) -> None:
        self._epochs: dict[NodeId, int] = {}

    def booted(self, simulation: Simulation, place: Place, node: Node) -> str | None:
        """Compare with the last start."""
        epoch, last = node.settings.boot_epoch, self._epochs.get(place.id, 0)
        self._epochs[place.id] = epoch
        if epoch <= last:
            return f"{short_id(place.id)} starts with boot epoch {epoch}, after {last}"
        return None

    def check(self, simulation: Simulation) -> list[str]:
        """Check that no node is connected with one that also runs at another address."""
        offences = []
        for place in simulation.live_nodes():
            for link in place.driver.links.values():
                known = simulation.places.get(link.peer.id)
                if known is not None and known.port is not link.target_port and known.is_live and link.is_open:
                    offences.append(f"{short_id(place.id)} accepts {format_id(link.peer.id)} at two addresses")
        return offences


class FailureDetection(Checker):
    """No node that runs and can be reached is declared dead, and no dead node stays in a leaf set for long.

    The first is checked once the network has been calm, and both nodes have run, for `DETECT_S`. The second allows
    `DETECT_S` + `REPAIR_S`, and `HEAL_S` after a disturbance.
    """

    name = "failure detection"
    number = 10
    holds_always = True

    def __init__(self) -> None:
        self.false_alarms = 0
        """How often a running node was declared dead, also during disturbances."""

    def emitted(self, simulation: Simulation, place: Place, event: Event) -> str | None:
        """Judge the verdict of one node on another."""
        if not isinstance(event, PeerFailed) or event.evidence == LEFT:
            return None
        accused = simulation.places.get(parse_id(event.peer))
        if accused is None or not accused.is_live or accused.index in simulation.hostile:
            return None
        self.false_alarms += 1
        truth, now = simulation.truth, simulation.now
        ran_s = now - max(truth.since[accused.id], truth.since[place.id])
        if min(ran_s, truth.calm_s()) < DETECT_S or accused.id not in truth.ready:
            return None
        return f"{short_id(place.id)} declares {short_id(accused.id)} dead ({event.evidence}), which runs"

    def check_node(self, simulation: Simulation, place: Place) -> list[str]:
        """Check whether a member of the leaf set has been dead for too long."""
        truth, now = simulation.truth, simulation.now
        allowed_s = DETECT_S + REPAIR_S
        if now - truth.since[place.id] < allowed_s or truth.calm_s() < HEAL_S:
            return []
        offences = []
        for peer in place.node.overlay.state.leaves:
            ended = truth.ended.get(peer.id)
            if ended is not None and now - ended > allowed_s:
                offences.append(f"{short_id(place.id)} still has {short_id(peer.id)}, dead for {now - ended:.1f} s")
        return offences


ALL_OF_A_TYPE: Final = 64
"""The first so many messages of each type are all checked, then every ``every``-th."""


class WireHygiene(Checker):
    """Decoding what was encoded gives the message back. Looks at the first of each type, then at a sample."""

    name = "wire hygiene"
    number = 30
    holds_always = True

    def __init__(self, every: int = 16) -> None:
        self._every = every
        self._counts: Counter[type[Message]] = Counter()

    def sent(self, simulation: Simulation, place: Place, message: Message) -> str | None:
        """Encode, decode, compare."""
        kind = type(message)
        self._counts[kind] += 1
        if self._counts[kind] > ALL_OF_A_TYPE and self._counts[kind] % self._every:
            return None
        try:
            decoded = decode_body(kind, encode_body(message))
        except ProtocolError as error:
            return f"{message} cannot be decoded: {error}"
        return None if decoded == message else f"{message} arrives as {decoded}"

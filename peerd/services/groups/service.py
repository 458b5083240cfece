"""The groups service of one node: a plugin that every node has, and that other plugins reach as ``host.groups``."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Self, cast

from peerd.api import (
    Envelope,
    GroupOutcome,
    Host,
    Metric,
    NeighbourChange,
    Plugin,
    PluginConfig,
    Verdict,
    handles,
    on_timer,
)
from peerd.errors import Bug, Unavailable
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from peerd.services.groups.anycast import Anycaster
from peerd.services.groups.config import GroupsConfig
from peerd.services.groups.departure import Departure
from peerd.services.groups.members import (
    LEFT_MAX,
    Entrusted,
    GroupMembership,
    Members,
    OnAnycast,
    OnMessage,
    OnOutcome,
    group_key,
)
from peerd.services.groups.messages import GROUP_MESSAGES, Anycast, Join, Publish, Redirect
from peerd.services.groups.multicast import Multicaster
from peerd.services.groups.ports import ServiceHost
from peerd.services.groups.refresh import Refresher
from peerd.services.groups.state import Group
from peerd.services.groups.tree import Trees
from peerd.services.service import Service


class GroupService(Service):
    """Ties the parts together: `Trees`, `Refresher`, `Multicaster`, `Anycaster`, `Members`."""

    name: ClassVar[str] = "groups"
    purpose: ClassVar[str] = "Multicast groups."
    version: ClassVar[int] = 1
    messages = GROUP_MESSAGES
    metrics = (
        Metric("peerd_groups_trees", "gauge", "Trees that this node is part of, by its place.", ("place",)),
        Metric("peerd_groups_children", "gauge", "Children of this node in all trees."),
        Metric("peerd_groups_memberships", "gauge", "Groups that plugins of this node have created or joined."),
        Metric("peerd_groups_parent_changes_total", "counter", "Parents gained and lost.", ("evidence",)),
        Metric("peerd_groups_delivered_total", "counter", "Multicasts handed to a member on this node."),
        Metric("peerd_groups_outcomes_total", "counter", "Multicasts and anycasts of this node.", ("outcome",)),
        Metric("peerd_groups_replayed_total", "counter", "Multicasts sent again to a child that came over."),
        Metric("peerd_groups_missed_total", "counter", "Multicasts that never came, as their numbers tell."),
        Metric("peerd_groups_dropped_total", "counter", "Messages and children given up here.", ("reason",)),
    )
    Config: ClassVar[type[PluginConfig]] = GroupsConfig

    def __init__(self, config: GroupsConfig | None = None) -> None:
        super().__init__(config)
        self._config = config if config is not None else GroupsConfig()
        self._entrusted = Entrusted()
        self._is_off = False
        self._held: dict[int, Publish | Anycast] = {}
        """Messages for groups of which this node is the root, but does not know yet."""
        self._holds = 0
        self._bereaved_at = float("-inf")
        """When a neighbour was last lost; the trees of groups whose root it was are about to arrive here."""

    def inherit(self, failed: Self) -> None:
        """Take over memberships and awaited outcomes, which belong to the plugins. The trees are made anew."""
        self._entrusted = failed._entrusted

    def start(self, host: Host) -> None:
        """Build the parts, and rejoin what was inherited."""
        super().start(host)
        self._host = cast(ServiceHost, host)
        self.trees = Trees(self._host, self._config)
        self.members = Members(self._host, self._config, self._entrusted)
        self._refresher = Refresher(self._host, self._config, self.trees)
        self._multicaster = Multicaster(self._host, self._config, self.trees, self.members)
        self._anycaster = Anycaster(self._host, self._config, self.trees, self.members)
        self.departure = Departure(self._host, self._config, self.trees)
        self.add_parts(self.trees, self._refresher, self._multicaster, self._anycaster, self.departure)
        self.trees.became_root = self._release
        self.trees.grew = self._refresher.wake
        for number in list(self._entrusted.waiting):
            self.members.settle(number, GroupOutcome.UNKNOWN)  # their timers went with the failed instance
        for group_id in self._entrusted.memberships:
            self.trees.want(group_id)

    def drain(self, done: Callable[[], None]) -> None:
        """Have every child find another parent, and every tree another root."""
        if self._is_off:
            done()
        else:
            self.departure.begin(done)

    def stop(self) -> None:
        """Tell the remaining children, and the parents."""
        if not self._is_off:
            self.trees.leave()

    def plugin_disabled(self, name: str) -> None:
        """End the memberships of a plugin that is taken out of service. If it is this service, take no more calls."""
        if name == self.name:
            self._is_off = True
            return
        for number in [key for key, (plugin, _) in self._entrusted.waiting.items() if plugin == name]:
            self._entrusted.waiting[number] = (name, lambda outcome, peer: None)
        for group_id in self._entrusted.of_plugin(name):
            self._end(group_id)

    # For plugins (see peerd.api.Groups)

    def create(self, plugin: Plugin, group: str) -> None:
        """Make the group exist. Raises `Unavailable` above ``memberships_max``."""
        if group_key(plugin.name, group) not in self._entrusted.memberships:
            self.join(group, GroupMembership(plugin.name, plugin.messages, None, None))

    def join(self, group: str, membership: GroupMembership) -> None:
        """Enter a membership, or replace it. Raises `Unavailable` above ``memberships_max``."""
        key = group_key(membership.plugin, group)
        memberships = self._entrusted.memberships
        if key not in memberships:
            count = sum(1 for _ in self._entrusted.of_plugin(membership.plugin))
            if count >= self._config.memberships_max:
                raise Unavailable(
                    f"{membership.plugin} is in {count} groups, the most that groups.memberships_max allows"
                )
        memberships[key] = membership
        if not self._is_off:
            self.trees.want(key)

    def leave(self, plugin: str, group: str) -> None:
        """End a membership."""
        self._end(group_key(plugin, group))

    def _end(self, group_id: NodeId) -> None:
        if self._entrusted.end(group_id) and not self._is_off:
            self.trees.unwant(group_id)

    def multicast(self, plugin: Plugin, group: str, message: Message, on_outcome: OnOutcome) -> None:
        """Send to all members. Raises `Unavailable` or `Bug`."""
        self._check_on()
        self._multicaster.publish(plugin, group, message, on_outcome)

    def anycast(self, plugin: Plugin, group: str, message: Message, on_outcome: OnOutcome) -> None:
        """Send to one member. Raises `Unavailable` or `Bug`."""
        self._check_on()
        self._anycaster.start(plugin, group, message, on_outcome)

    def _check_on(self) -> None:
        if self._is_off:
            raise Unavailable("the groups service has failed; unless it fails again and again it is back in a moment")

    # Common API

    def forward(self, envelope: Envelope) -> Verdict | PeerRef:
        """A join or an anycast on its way to the root may meet the tree here."""
        message, own = envelope.message, self._host.id
        if envelope.source.id == own or envelope.next_hop.id == own:
            return Verdict.PASS
        if isinstance(message, Join) and self.trees.intercept(message, envelope.previous_hop):
            return Verdict.STOP
        if isinstance(message, Anycast) and self._anycaster.intercept(message):
            return Verdict.STOP
        return Verdict.PASS

    def deliver(self, key: NodeId, message: Message, source: PeerRef) -> None:
        """Handle a message as the root of ``key``, unless a closer node has just come."""
        if not isinstance(message, Join | Publish | Anycast) or message.group != key:
            self._host.count("peerd_groups_dropped_total", reason="malformed")
        elif self._pass_on(message):
            pass
        elif not self.trees.is_closest(key):
            self._host.route(key, message)
        elif isinstance(message, Join):
            self.trees.arrived(message)
        else:
            self._at_root(message)

    def _pass_on(self, message: Join | Publish | Anycast) -> bool:
        """Give the message to the heir, when this node is leaving and the sender does not know that yet."""
        heir = self.departure.heir(message.group)
        if heir is None or (isinstance(message, Join) and message.joiner.id == self._host.id):
            return False
        if isinstance(message, Join):
            group = self.trees.groups.get(message.group)
            is_child = group is not None and message.joiner.id in group.children
            self._host.send(message.joiner, Redirect(message.group, (heir,), keeps=is_child))
        else:
            self._host.send(heir, message)
        return True

    def neighbours_changed(self, change: NeighbourChange) -> None:
        """Check the roots: a group of this node may have a new root, or this node may be the new root of others."""
        if change.removed:
            self._bereaved_at = self._host.now()
        self.trees.check_roots()
        self.departure.say_so_to(change.added)
        for number, message in list(self._held.items()):
            if not self.trees.is_closest(message.group):
                self._host.cancel_timer("hold", number)
                self._host.route(message.group, self._held.pop(number))

    # At the root

    def _at_root(self, message: Publish | Anycast) -> None:
        group = self.trees.groups.get(message.group)
        if group is not None:
            if not group.is_root:
                self.trees.become_root(group)
            self._dispatch(group, message)
        elif len(self._held) >= self._config.held_max:
            self._refuse(message)
        elif message not in self._held.values():  # it may be held already: an origin without an answer sends it again
            self._holds += 1
            self._held[self._holds] = message
            self._host.set_timer("hold", self._hold_s(), self._holds)

    def _hold_s(self) -> float:
        """How long to wait for a group's tree: its nodes may take so long to notice that the root has died."""
        repaired_at = self._bereaved_at + self._config.repair_s
        return max(self._config.hold, repaired_at - self._host.now())

    def _dispatch(self, group: Group, message: Publish | Anycast) -> None:
        if isinstance(message, Publish):
            self._multicaster.take(group, message)
        else:
            self._anycaster.walk(message)

    def _refuse(self, message: Publish | Anycast) -> None:
        if isinstance(message, Publish):
            self._multicaster.refuse(message)
        else:
            self._anycaster.refuse(message)

    def _release(self, group: Group) -> None:
        """Handle the messages that waited for a group's tree, which has arrived."""
        for number in [key for key, held in self._held.items() if held.group == group.id]:
            self._host.cancel_timer("hold", number)
            self._dispatch(group, self._held.pop(number))

    @on_timer("hold")
    def _hold(self, number: int) -> None:
        self._refuse(self._held.pop(number))

    @handles(Publish)
    def _on_publish(self, message: Publish, source: PeerRef) -> None:
        """A root that leaves passes a multicast on to its heir."""
        group = self.trees.groups.get(message.group)
        if group is not None and group.is_root:
            self._multicaster.take(group, message)
        elif not self._pass_on(message):
            self._host.count("peerd_groups_dropped_total", reason="not_root")  # its origin sends it again

    @on_timer("tick")
    def _tick(self, payload: object) -> None:
        self._refresher.tick()
        self._gauge()

    # Telling

    def _gauge(self) -> None:
        trees = self.trees
        for place, count in trees.sizes().items():
            self._host.gauge("peerd_groups_trees", count, place=place)
        self._host.gauge("peerd_groups_children", sum(len(group.children) for group in trees.groups.values()))
        self._host.gauge("peerd_groups_memberships", len(self._entrusted.memberships))

    def validate(self) -> None:
        """Assert the invariants of every tree, and the limits."""
        if self._is_off:
            return
        for group in self.trees.groups.values():
            group.validate(self.trees.children_max)
            if group.is_wanted != (group.id in self._entrusted.memberships):
                raise Bug("a group is wanted by no plugin, or not wanted though a plugin is in it")
        if len(self._held) > self._config.held_max or len(self._entrusted.waiting) > self._config.outstanding_max:
            raise Bug("more messages wait than the limits allow")
        if len(self._entrusted.heard.keys() - self._entrusted.memberships.keys()) > LEFT_MAX:
            raise Bug("too much is remembered of groups that were left")


class BoundGroups:
    """Looks the service up at each call, so that a plugin may keep this object when the service is restarted."""

    def __init__(self, service: Callable[[], GroupService], plugin: Plugin) -> None:
        self._service = service
        self._plugin = plugin

    def create(self, group: str) -> None:
        """See `peerd.api.Groups.create`."""
        self._service().create(self._plugin, group)

    def join(self, group: str, on_message: OnMessage, on_anycast: OnAnycast | None = None) -> None:
        """See `peerd.api.Groups.join`."""
        membership = GroupMembership(self._plugin.name, self._plugin.messages, on_message, on_anycast)
        self._service().join(group, membership)

    def leave(self, group: str) -> None:
        """See `peerd.api.Groups.leave`."""
        self._service().leave(self._plugin.name, group)

    def multicast(self, group: str, message: Message, on_outcome: Callable[[GroupOutcome], None] | None = None) -> None:
        """See `peerd.api.Groups.multicast`."""

        def told(outcome: GroupOutcome, peer: PeerRef | None) -> None:
            if on_outcome is not None:
                on_outcome(outcome)

        self._service().multicast(self._plugin, group, message, told)

    def anycast(self, group: str, message: Message, on_outcome: Callable[[GroupOutcome, PeerRef | None], None]) -> None:
        """See `peerd.api.Groups.anycast`."""
        self._service().anycast(self._plugin, group, message, on_outcome)

"""Multicasts: from the origin to the root, and from the root down the tree."""

from __future__ import annotations

from dataclasses import dataclass

from peerd.api import GroupOutcome, Part, Plugin, handles, on_timer
from peerd.limits import GROUP_BODY_BYTES_MAX
from peerd.messages import Message, PeerRef
from peerd.services.groups.config import GroupsConfig
from peerd.services.groups.members import Members, OnOutcome, encoded, group_key
from peerd.services.groups.messages import (
    Detach,
    GroupMulticast,
    MulticastPosition,
    Publication,
    Publish,
    PublishOutcome,
)
from peerd.services.groups.ports import ServiceHost
from peerd.services.groups.state import Group
from peerd.services.groups.stream import before, identity, later, missed
from peerd.services.groups.tree import Trees


@dataclass(slots=True)
class Sent:
    """A multicast of this node that its root has not confirmed yet."""

    publish: Publish
    attempts: int = 0


class Multicaster(Part):
    """The multicasts of one node: those it sends, those it numbers as a root, and those it passes on."""

    def __init__(self, host: ServiceHost, config: GroupsConfig, trees: Trees, members: Members) -> None:
        self._host = host
        self._config = config
        self._trees = trees
        self._members = members
        self._sent: dict[int, Sent] = {}

    # Origin

    def publish(self, plugin: Plugin, group: str, message: Message, on_outcome: OnOutcome) -> None:
        """Send a plugin's message to its group. Raises `Bug` or `Unavailable`; see `peerd.api.Groups`."""
        host = self._host
        body = encoded(plugin, message, GROUP_BODY_BYTES_MAX)
        number = self._members.await_outcome(plugin.name, on_outcome)
        publication = Publication(host.peer, host.boot_epoch, number, message.TYPE_ID, body)
        self._sent[number] = Sent(Publish(group_key(plugin.name, group), publication, host.rng.getrandbits(64)))
        self._send(number)

    @on_timer("publish")
    def _send(self, number: int) -> None:
        """Send it, for the first time or again because the root did not answer. Members see it once all the same."""
        sent = self._sent[number]
        if sent.attempts >= self._config.publish_attempts:
            self._settle(number, GroupOutcome.UNKNOWN)
            return
        sent.attempts += 1
        self._host.route(sent.publish.group, sent.publish)
        self._host.set_timer("publish", self._config.publish_timeout, number)

    @handles(PublishOutcome)
    def _answered(self, message: PublishOutcome, source: PeerRef) -> None:
        """The root, or whoever has seen the question on its way there, says what became of a multicast of this node."""
        sent = self._sent.get(message.number)
        if sent is None:
            return
        if sent.publish.nonce != message.nonce:
            self._drop("unasked")
        else:
            self._host.cancel_timer("publish", message.number)
            self._settle(message.number, GroupOutcome.TAKEN if message.is_taken else GroupOutcome.NO_SUCH_GROUP)

    def _settle(self, number: int, outcome: GroupOutcome) -> None:
        del self._sent[number]
        self._members.settle(number, outcome)

    # Root

    def refuse(self, publish: Publish) -> None:
        """Tell the origin that there is no such group."""
        self._answer(publish, is_taken=False)

    def take(self, group: Group, publish: Publish) -> None:
        """As the root, number a multicast and send it down the tree."""
        publication = publish.publication
        last = group.position
        if last is not None and group.seen.is_new(identity(publication)):
            group.position = MulticastPosition(last.generation, last.root, last.sequence + 1)
            self._spread(group, GroupMulticast(group.id, group.position, publication))
        self._answer(publish, is_taken=True)

    def _answer(self, publish: Publish, *, is_taken: bool) -> None:
        publication = publish.publication
        if not self._host.may_pass(publication.origin):  # others say who that is: they must not have it flooded
            self._drop("rate")
            return
        self._host.send(publication.origin, PublishOutcome(publication.number, is_taken, publish.nonce))

    # Tree

    @handles(GroupMulticast)
    def _received(self, multicast: GroupMulticast, source: PeerRef) -> None:
        """Take a multicast from the parent, and pass it on."""
        group = self._trees.groups.get(multicast.group)
        if group is None or not group.is_child_of(source):
            self._drop("not_parent")
            self._host.send(source, Detach(multicast.group))
            return
        if not multicast.position.sequence:
            self._drop("malformed")
            return
        group.heard_at = self._host.now()
        gap = missed(group.position, before(multicast.position))
        if gap and self._config.replay_messages and self._trees.catch_up(group):
            self._drop("gap")  # it comes again, after those that are missing
            return
        if gap:
            self._host.count("peerd_groups_missed_total", gap)
        group.position = later(group.position, multicast.position)
        if group.seen.is_new(identity(multicast.publication)):
            self._spread(group, multicast)
        else:
            self._drop("duplicate")

    def _spread(self, group: Group, multicast: GroupMulticast) -> None:
        self._trees.log.add(multicast)
        for child in group.children.values():
            if not child.is_welcomed:
                continue  # a child that still waits gets it later, with the others that it missed
            if self._host.may_pass(child.peer):
                self._host.send(child.peer, multicast)
            else:
                self._drop("rate")  # the child sees the gap, and asks for it
        self._members.deliver(group.id, multicast.publication)

    def _drop(self, reason: str) -> None:
        self._host.count("peerd_groups_dropped_total", reason=reason)

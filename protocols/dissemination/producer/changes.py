"""How a producer parts with its streams: another one takes them, or they end, after their children have all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from peerd.errors import Unavailable
from peerd.frozen import Frozen
from protocols.dissemination.asking import StreamQuestions, node_in_tree
from protocols.dissemination.models import StreamSpec, StreamTreeView, StreamView
from protocols.dissemination.producer.publishing import Publishers, produced_elsewhere
from protocols.dissemination.producer.standbys import Standbys
from protocols.dissemination.producer.succession import Succession
from protocols.dissemination.service import StreamRefused
from protocols.dissemination.stream import StreamRecord
from protocols.dissemination.stream_node import DRAIN_S, StreamNode
from protocols.dissemination.streams import Streams, then

Done = Callable[[Exception | None], None]
Viewed = Callable[[StreamView | Exception], None]


class _Ending(Frozen):
    node: StreamNode
    since: float
    on_done: Done


class Endings:
    """``release`` tells the standbys of a stream that nobody is to go on with it."""

    def __init__(self, streams: Streams, release: Callable[[StreamNode], None]) -> None:
        self._streams, self._host, self._nodes, self._release = streams, streams.host, streams.nodes, release
        self._endings: list[_Ending] = []

    def __contains__(self, node: StreamNode) -> bool:
        return any(each.node is node for each in self._endings)

    def begin(self, node: StreamNode, on_done: Done) -> None:
        """End a stream once its children have what was published. Raises `StreamRefused` and `Unavailable`."""
        if node in self:
            raise StreamRefused("conflict", f"the stream {node.name} is being ended already")
        if node.has_sent_all():
            self.end(node, on_done)
        else:
            node.why_paused = "is being ended"
            self._endings.append(_Ending(node, self._host.now(), on_done))

    def tick(self) -> None:
        """End those whose children have taken it, or have had their time."""
        for each in list(self._endings):
            node = each.node
            if self._nodes.get(node.record.key) is not node:
                self._endings.remove(each)
                each.on_done(None)
            elif not node.is_producer:  # another one has taken it over meanwhile, and it is not this node's to end
                self._endings.remove(each)
                each.on_done(produced_elsewhere(node.record))
            elif node.has_sent_all() or self._host.now() - each.since >= DRAIN_S:
                self._endings.remove(each)
                node.why_paused = ""
                try:
                    self.end(node, each.on_done)
                except Unavailable as error:
                    each.on_done(error)

    def end(self, node: StreamNode, on_done: Done) -> None:
        """End a stream now. Raises `Unavailable`: then it goes on."""
        on_disk: Unavailable | None = None

        def removed(why: Exception | None) -> None:
            on_done(why or on_disk)

        self._streams.registry.remove(node.record, removed)
        self._release(node)
        self._nodes.give_up(node, "ended")
        try:
            self._streams.produced.forget(node.record)
        except Unavailable as error:
            on_disk = error  # it is over, but this node will produce it again after a restart


class ProducerChanges:
    """Which streams this node produces. Every method for clients may raise `StreamRefused` and `Unavailable` at once;
    ``on_done`` gets the answer, or one of these."""

    def __init__(self, streams: Streams, questions: StreamQuestions, publishers: Publishers) -> None:
        self._streams, self._questions, self._publishers = streams, questions, publishers
        self.succession = Succession(streams)
        self.standbys = Standbys(streams, questions)
        self.endings = Endings(streams, self.standbys.release)

    def create(self, spec: StreamSpec, on_done: Viewed, owner: str = "") -> None:
        """Make this node the producer of a new stream; its record goes to the ring. Fine if it is that already.

        ``owner``: whose it is; what that means, the front says.
        """
        streams, told = self._streams, self._streams.later(on_done)
        streams.check_stays()
        try:
            record = StreamRecord.of(spec, streams.host.peer)
        except ValueError as error:
            raise StreamRefused("invalid", str(error)) from error

        def done(answer: StreamNode | Exception) -> None:
            told(answer if isinstance(answer, Exception) else streams.view(answer))

        streams.produced.create(record, owner, done)

    def hand_over(self, name: str, to: str, on_done: Viewed) -> None:
        """Make another node of the tree the producer of a stream that this node produces; this one is a member then.

        ``to``: its address, or the beginning of its id.
        """
        streams, told = self._streams, self._streams.later(on_done)
        streams.check_stays()
        node = self._publishers.node_of(name)

        def asked(view: StreamTreeView) -> None:
            node = self._publishers.node_of(name)  # it may have gone meanwhile

            def done(why: Exception | None) -> None:
                told(streams.view(node) if why is None else why)

            self.succession.hand_over(node, node_in_tree(view, to), done)

        self.succession.check_stays(node)
        self._questions.walk(node.record, then(asked, told))

    def remove(self, name: str, on_done: Viewed) -> None:
        """End a stream that this node produces."""
        told, node = self._streams.later(on_done), self._publishers.node_of(name)
        self.succession.check_stays(node)
        view = self._streams.view(node)
        self.endings.begin(node, lambda why: told(view if why is None else why))

    def tick(self) -> None:
        """Called a few times a second."""
        self.endings.tick()
        self.standbys.tick()
        self.succession.tick()

    def begin_leaving(self, node: StreamNode) -> None:
        """In order: a stream ends where it is to end with its producer; one with standbys goes to the first of them."""
        if node.is_producer and (node.record.producer_gone == "end" or node in self.endings):
            with suppress(Unavailable):  # else its record lapses
                self.endings.end(node, lambda why: None)
                return
        if not node.is_producer or not node.record.standbys:
            node.begin_leaving()
            return
        try:
            self.succession.hand_over(node, node.record.standbys[0].peer, lambda why: node.begin_leaving())
        except (StreamRefused, Unavailable):
            node.begin_leaving()

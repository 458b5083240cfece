"""The streams of one node: what all parts of its plugin share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from peerd.api import Host, Part, on_timer
from peerd.errors import Unavailable
from protocols.dissemination.config import DisseminationConfig
from protocols.dissemination.models import StreamView
from protocols.dissemination.names import stream_key
from protocols.dissemination.producer.produced import ProducedStreams
from protocols.dissemination.registry import Found
from protocols.dissemination.service import StreamRefused
from protocols.dissemination.stream_node import StreamNode
from protocols.dissemination.subscriptions import StreamSubscriptions
from protocols.dissemination.taking_part import StreamNodes, StreamsOwner
from protocols.dissemination.views import view_of

LEAVING: Final = "this node is leaving the ring"
"""What clients are told meanwhile; they wait, and go on when it is back."""
_ANSWERS: Final = "stream_answers"


def then(go_on: Callable[[Any], None], on_done: Callable[[Any], None]) -> Callable[[Any], None]:
    """Go on with an answer, unless it is none, or that cannot be done."""

    def answered(answer: Any) -> None:
        try:
            if isinstance(answer, Exception):
                raise answer
            go_on(answer)
        except (StreamRefused, Unavailable) as error:
            on_done(error)

    return answered


class Streams(Part):
    """Those that it takes part in, their records, and its clients' subscriptions to them."""

    is_leaving = False

    def __init__(self, host: Host, config: Callable[[], DisseminationConfig], owner: StreamsOwner) -> None:
        self.host, self.config = host, config
        self.nodes = StreamNodes(host, config, owner)
        self.registry = self.nodes.registry
        self.produced = ProducedStreams(host, config, self.nodes, owner)
        self.clients = StreamSubscriptions(host, config)
        self._answers: list[Callable[[], None]] = []

    def check_stays(self) -> None:
        """Raise `Unavailable` while this node leaves the ring."""
        if self.is_leaving:
            raise Unavailable(LEAVING)

    def find(self, name: str, on_found: Found) -> None:
        """A stream by its name, wherever it is produced. Raises `Unavailable`."""
        if (node := self.nodes.get(stream_key(name))) is not None:
            on_found(node.record)
        else:
            self.check_stays()  # nobody answers a node that is out of the ring
            self.registry.find(name, on_found)

    def find_now(self, name: str, on_found: Found) -> None:
        """The same, with the standbys of this moment, which a member knows only if it has looked lately."""
        node = self.nodes.get(stream_key(name))
        if node is None:
            self.find(name, on_found)
        else:
            self.nodes.refreshed(node, on_found)

    def view(self, node: StreamNode) -> StreamView:
        """What clients see of a stream that this node takes part in."""
        return view_of(node.record, node, len(self.clients.of(node.name)))

    def later(self, on_done: Callable[[Any], None]) -> Callable[[Any], None]:
        """Answers that are known at once come after the caller's own call has returned."""

        def answer(what: Any) -> None:
            if not self._answers:
                self.host.set_timer(_ANSWERS, 0.0)
            self._answers.append(partial(on_done, what))

        return answer

    @on_timer(_ANSWERS)
    def on_answers(self, payload: None) -> None:
        """Give the answers."""
        answers, self._answers = self._answers, []
        for answer in answers:
            answer()

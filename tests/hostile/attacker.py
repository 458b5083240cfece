"""A member that misbehaves by script: a whole node of the project with a valid certificate, in the test's process.

Left alone it is as honest as any. A script sends whatever it likes over its links, decides which incoming frames its
own node gets to see, and changes what its plugins give away.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final, cast

from msgspec.structs import replace

from peerd.api import AcceptSwap, Plugin, Priority, SwapDecision, SwapRequest, Value
from peerd.cluster.layout import Layout
from peerd.config import LoadedConfig, load_config
from peerd.daemon.service import Daemon
from peerd.driver import StreamHandler
from peerd.identity.authority import ClusterAuthority, create_node_files
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from peerd.node.node import Node
from peerd.overlay.messages import Route
from peerd.plugins import find_plugins, plugin_models
from peerd.sim.hostile.member import HostileNode
from peerd.wire.codec import decode, encode, encode_reply, encode_request
from peerd.wire.frames import Frame
from protocols.aggregation.config import AggregationConfig
from protocols.aggregation.messages import Invite, InviteAnswer, StartRound
from protocols.aggregation.plugin import Aggregation
from protocols.dissemination.config import DisseminationConfig
from protocols.dissemination.front.hostile_base import StreamBehaviour
from protocols.dissemination.plugin import Dissemination
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.plugin import PubSub
from tests.hostile.bystander import Bystander
from tests.support.link_rig import until

JOIN_S: Final = 60.0
FIRST_CORRELATION: Final = 1 << 31
"""Of requests that a script makes up: far from those of the node itself."""
ITS_FAN_OUT: Final = 32
"""It takes as many children as there may be: whom it is to lie to has to be below it."""

Listen = Callable[[PeerRef, Frame], bool]
"""What a script does with an incoming frame; whether the attacker's own node is kept from seeing it."""
Twist = Callable[[PeerRef, Message], Message | None]
"""What is sent instead of a message of the attacker's own node; ``None``: nothing is."""


class LyingAggregation(Aggregation):
    """Takes part in rounds; a script may change the values that it gives away, and do more whenever a round starts."""

    def __init__(self, config: AggregationConfig) -> None:
        super().__init__(config)
        self.falsify: Callable[[bytes, Value], Value] = lambda round_id, value: value
        self.on_round: Callable[[StartRound], None] = lambda start: None

    def start(self, host: Any) -> None:
        """Also stand between this plugin and the swaps that it opens, and the messages with which values ride."""
        super().start(host)
        swap = host.swap

        def lying_swap(peer: PeerRef, tag: bytes, value: Value, *arguments: Any, **named: Any) -> Any:
            return swap(peer, tag, self.falsify(tag[1:17], value), *arguments, **named)

        host.swap = lying_swap
        send = host.send

        def lying_send(peer: PeerRef, message: Message, *arguments: Any, **named: Any) -> None:
            if isinstance(message, Invite | InviteAnswer) and message.value:
                false = bytes(cast(bytes, self.falsify(message.round_id, message.value)))
                message = replace(message, value=false)
            send(peer, message, *arguments, **named)

        host.send = lying_send
        told = self.participating.start_told

        def start_told(start: StartRound) -> None:
            told(start)
            self.on_round(start)

        self.participating.start_told = start_told  # type: ignore[method-assign]  # the script hears of it, too

    def swap_requested(self, request: SwapRequest) -> SwapDecision:
        """Give what the script says instead of the true value."""
        answer = super().swap_requested(request)
        if not isinstance(answer, AcceptSwap):
            return answer
        false = self.falsify(request.tag[1:17], answer.value)
        return AcceptSwap(false, answer.callbacks, answer.deadline_s)


class Between:
    """Stands between the attacker's links and its node: a script hears each frame first."""

    def __init__(self, node: Node, attacker: Attacker) -> None:
        self._node = node
        self._attacker = attacker

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)

    def stream_accepted(self, peer: PeerRef) -> StreamHandler:
        """Have the script take a swap that a peer opens, if it wants it."""
        accept = self._attacker.accept
        return self._node.stream_accepted(peer) if accept is None else accept(peer)

    def frame_received(self, peer: PeerRef, frame: Frame) -> None:
        """Tell the script, then the node unless the script keeps the frame."""
        if not self._attacker.listen(peer, frame):
            self._node.frame_received(peer, frame)


class Attacker:
    """An asynchronous context manager; inside it the attacker is in the ring, and in the leaf sets of a small one."""

    def __init__(
        self,
        layout: Layout,
        name: str,
        data_root: Path,
        bystanders: Sequence[PeerRef],
        *,
        watermark: PeerRef | None = None,
    ) -> None:
        record = layout.read()
        assert record is not None
        directory = layout.directory.parent / name
        self.bystanders = list(bystanders)
        self.id = create_node_files(ClusterAuthority.load(layout.directory / "ca"), directory)
        self.listen: Listen = lambda peer, frame: False
        self.twist: Twist = lambda peer, message: message
        self.rng = random.Random(5)
        self.failures: list[str] = []
        """Exceptions of the attacker's own plugins: mistakes of a script."""
        self.accept: Callable[[PeerRef], StreamHandler] | None = None
        """Takes the bulk connections of others instead of the attacker's node."""
        seeds = self.bystanders if watermark is None else [watermark]
        loaded = self._config(record.name, directory, data_root, seeds)
        aggregation = loaded.config.protocols.get("aggregation")
        assert isinstance(aggregation, AggregationConfig)
        self.aggregation = LyingAggregation(aggregation)
        self.bystander = Bystander()
        self.streams = Dissemination(DisseminationConfig.model_validate({"fan_out": ITS_FAN_OUT}))
        self.pubsub = PubSub(PubSubConfig())
        plugins: Sequence[Plugin] = [self.aggregation, self.bystander, self.streams, self.pubsub]
        self.daemon = Daemon(loaded, plugins=plugins, fronts={})
        self._numbers = count(FIRST_CORRELATION)

    def _config(self, cluster: str, directory: Path, data_root: Path, seeds: Sequence[PeerRef]) -> LoadedConfig:
        flags: dict[str, object] = {
            "node.cluster": cluster,
            "node.profile": "local",
            "node.listen": "127.0.0.1:0",
            "node.state_dir": str(directory),
            "node.bootstrap": [peer.address for peer in seeds],
            "node.shutdown_timeout": "1s",
            "admin.http": "",
            "protocols.aggregation.data_root": str(data_root),
        }
        return load_config(environment={}, flags=flags, plugin_models=plugin_models(find_plugins()))

    async def __aenter__(self) -> Attacker:
        await self.daemon.start()
        self.daemon.links.attach(Between(self.daemon.node, self))
        self.daemon.driver.handler_failed = self._failed  # a script must not fail unseen
        self.daemon.driver.send = self._send_twisted  # what its node sends is changed
        try:
            await until(lambda: self.daemon.node.is_ready, JOIN_S)
            await until(lambda: all(map(self.is_linked, self.bystanders)), JOIN_S)
        except BaseException:
            await self.daemon.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.daemon.stop()

    def _failed(self, plugin: str, error: Exception, peer: PeerRef | None = None) -> None:
        self.failures.append(f"{plugin}: {error!r}")

    def _send_twisted(self, peer: PeerRef, frame: Frame, priority: Priority) -> None:
        decoded = decode(frame)
        message, correlation, is_reply = decoded if decoded is not None else (None, None, False)
        told = None if message is None else self.twist(peer, message)
        if told is message:
            self.daemon.links.send(peer, frame, priority)
        elif told is not None and correlation is None:
            self.daemon.links.send(peer, encode(told), priority)
        elif told is not None and correlation is not None:
            again = encode_reply if is_reply else encode_request
            self.daemon.links.send(peer, again(told, correlation), priority)

    def behave(self, kind: type[StreamBehaviour]) -> None:
        """Do to those below it in streams what a hostile node of the simulator does."""
        behaviour = kind(cast(HostileNode, self))  # it has what these behaviours use: `rng` and `say`
        self.twist = behaviour.tells

    @property
    def peer(self) -> PeerRef:
        """Its own id and address."""
        return self.daemon.peer

    def is_linked(self, peer: PeerRef) -> bool:
        """Whether its control link to a peer is up."""
        return self.daemon.links.is_linked(peer)

    # What scripts send

    def send(self, peer: PeerRef, message: Message) -> None:
        """One message to one peer, as if the node had sent it."""
        self.daemon.links.send(peer, encode(message), Priority.NORMAL)

    say = send

    def request(self, peer: PeerRef, message: Message) -> None:
        """The same as a request; the reply is for nobody."""
        self.daemon.links.send(peer, encode_request(message, next(self._numbers)), Priority.NORMAL)

    def send_frame(self, peer: PeerRef, frame: Frame) -> None:
        """Bytes that need be no message at all."""
        self.daemon.links.send(peer, frame, Priority.NORMAL)

    def route_as(self, source: PeerRef, key: NodeId, message: Message, to: PeerRef) -> None:
        """Have a peer route a message that, it says, comes from ``source``."""
        frame = encode(message)
        route = Route((key,), frame[0], frame[2], source, 1, next(self._numbers), 1)
        self.request(to, route)

    async def moments(self, times: int, pause_s: float, act: Callable[[int], None]) -> None:
        """Do something a number of times with a pause between, in which the loop and the other processes run."""
        for number in range(times):
            act(number)
            await asyncio.sleep(pause_s)

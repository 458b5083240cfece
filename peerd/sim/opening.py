"""Opening a connection, one step after the other: the round trips of TCP, TLS and Hello.

dialler                               target
  | ---- SYN ----------------------->  |     refused here when nobody listens
  | <--- SYN-ACK --------------------- |
  | ---- ClientHello ---------------->  |
  | <--- ServerHello .. Finished ----- |     the dialler knows whom it has reached
  | ---- Finished, Hello ------------>  |     the target decides, and may send from here on
  | <--- HelloAck | HelloRefused ----- |     the dialler of a link may send from here on, that of a stream with Hello
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from peerd.errors import Bug
from peerd.linking.channel import Channel
from peerd.messages import PeerRef
from peerd.sim.engine import mark_of
from peerd.sim.links import SimLink
from peerd.sim.network import CONNECT_RETRY_S, Port, Process, State

if TYPE_CHECKING:
    from peerd.ids import NodeId

DIAL_MARK: Final = 0x44494C
EXISTING_LINK_POLL_S: Final = 0.02


class Opening:
    """One connection that this node is opening; implements `peerd.linking.channel.Dial`.

    ``target`` is the node that listens at the dialled address, if any; ``expected`` is the id that must answer.
    """

    def __init__(self, driver: Process, target: Port | None, expected: NodeId | None, delay_s: float = 0.0) -> None:
        self.driver = driver
        self.target = target
        self._expected = expected
        self._network = driver.network
        self._engine = driver.engine
        self._mark = mark_of(driver.port.index, DIAL_MARK)
        self._is_over = False
        self._deadline = 0.0
        self._out_s = self._back_s = 0.0
        if target is not None:
            self._out_s = driver.network.latency_s(driver.port, target)
            self._back_s = driver.network.latency_s(target, driver.port)
        self.has_said_hello = False
        driver.openings[self] = None
        if delay_s > 0:
            self._engine.schedule(self._engine.now + delay_s, self._mark, self._begin)
        else:
            self._begin(None)

    # What kinds of connections differ in

    def accept(self, target: Process) -> str | None:
        """Hello has arrived: make the target's end, or return the reason of the refusal."""
        raise Bug("Opening.accept is for subclasses")

    def greeted(self, due: float) -> None:
        """Hello is on its way, and will be there at that time."""

    def opened(self) -> None:
        """The answer has arrived: make this end."""
        raise Bug("Opening.opened is for subclasses")

    def failed(self, reason: str) -> None:
        """The dial has failed."""
        raise Bug("Opening.failed is for subclasses")

    def given_up(self) -> None:
        """This end has given up, when the target has made its end already."""

    # Steps

    def abandon(self) -> None:
        """Give the dial up, as nobody wants it any more."""
        if not self._is_over:
            self._end()
            self.given_up()

    def _begin(self, _: None) -> None:
        if not self._may_go_on(self._begin):
            return
        network, source, target = self._network, self.driver.port, self.target
        self.has_said_hello = True
        self._answer_due()
        if target is None:
            self._after(CONNECT_RETRY_S, lambda _: self._fail("refused"))
        else:
            connect_s = self._out_s + self._back_s + network.connect_wait_s(source, target)
            self._after(connect_s, self._connected)

    def _connected(self, _: None) -> None:
        """TCP's handshake is done, or has failed."""
        target, network = self.target, self._network
        if target is None or not self._may_go_on(self._connected):
            return
        rtt_s = self._out_s + self._back_s
        if target.state is State.SILENT or network.is_cut_either_way(self.driver.port, target):
            self._again(self._connected)
        elif target.state is State.STOPPED:
            self._fail("refused")
        else:
            self._answer_due()
            is_other = self._expected is not None and target.peer.id != self._expected
            self._after(rtt_s, (lambda _: self._fail("wrong_callee")) if is_other else self._greet)

    def _greet(self, _: None) -> None:
        """TLS's handshake is done: say Hello."""
        target = self.target
        if target is None or not self._may_go_on(self._greet):
            return
        if target.state in (State.SILENT, State.PAUSED) or self._network.is_cut_either_way(self.driver.port, target):
            self._again(self._greet)  # of TCP's handshake the kernel has taken care, TLS's is for the process
            return
        self._answer_due()
        hello_s = self._out_s + self._network.repair_s(self.driver.port, target)
        self._after(hello_s, self._hello_arrived)
        self.greeted(self._engine.now + hello_s)

    def _hello_arrived(self, _: None) -> None:
        target, network = self.target, self._network
        if target is None or self._is_over:
            return
        there = target.driver
        if target.state in (State.SILENT, State.PAUSED) or network.is_cut_either_way(self.driver.port, target):
            self._again(self._hello_arrived)
            return
        if there is None or there.node is None or target.state is State.STOPPED:
            refusal: str | None = "closed_early"
        elif target is self.driver.port:
            refusal = "self"
        else:
            refusal = self.accept(there)
        if refusal is None:
            self._engine.schedule(self._engine.now + self._back_s, self._mark, self._answered)
        else:
            self._after(self._back_s, lambda _: self._fail(refusal))

    def _answered(self, _: None) -> None:
        if self._may_go_on(self._answered):
            self._end()
            self.opened()

    def _may_go_on(self, step: Callable[[None], None]) -> bool:
        """Whether the next step may run now; while the process is paused it is put off."""
        if self._is_over:
            return False
        if self.driver.state is State.PAUSED:
            self.driver.keep(step, None)
            return False
        return True

    def _answer_due(self) -> None:
        """The target has the whole time for its next answer: see `LinkSettings.dial_timeout_s`."""
        self._deadline = self._engine.now + self._network.links.dial_timeout_s

    def _after(self, delay_s: float, step: Callable[[None], None]) -> None:
        """Do a step after a delay, or fail if the time limit comes first."""
        due = self._engine.now + delay_s
        if due > self._deadline:
            self._engine.schedule(self._deadline, self._mark, self._late)
        else:
            self._engine.schedule(due, self._mark, step)

    def _again(self, step: Callable[[None], None]) -> None:
        """Try a step again, as a kernel does when nobody answers, until the time limit."""
        if self._engine.now >= self._deadline:
            self._fail("timeout")
        else:
            self._engine.schedule(min(self._engine.now + CONNECT_RETRY_S, self._deadline), self._mark, step)

    def _late(self, _: None) -> None:
        self._fail("timeout")

    def _fail(self, reason: str) -> None:
        if self._may_go_on(lambda _: self._fail(reason)):
            self._end()
            self.failed(reason)

    def _end(self) -> None:
        self._is_over = True
        self.driver.openings.pop(self, None)


class LinkOpening(Opening):
    """A control link that is being opened."""

    there: SimLink | None = None

    def accept(self, target: Process) -> str | None:
        """Let the target's policy decide."""
        refusal = target.policy.admit(self.driver.peer.id, self.driver.boot_epoch)
        if refusal is not None:
            return refusal[0]
        self.there = SimLink(target, self.driver, dialled=False, latency_s=self._back_s)
        target.link_up(self.there, None)
        return None

    def connect_ends(self, dial: Opening | None) -> None:
        """Make this end of the link as well."""
        if self.there is None:
            raise Bug("a link that nobody accepted")
        here = SimLink(self.driver, self.there.source, dialled=True, latency_s=self._out_s)
        here.pair(self.there)
        self.driver.link_up(here, dial)

    def given_up(self) -> None:
        """The target reads a Goodbye, or sees a reset when this process died."""
        if self.there is not None:
            self.there.dialler_gone("duplicate_link" if self.driver.is_alive else None)


class PeerOpening(LinkOpening):
    """A dial that the policy asked for."""

    def __init__(self, driver: Process, channel: Channel, delay_s: float) -> None:
        self.channel = channel
        peer = channel.peer
        super().__init__(driver, driver.network.port_at(peer.host, peer.port), peer.id, delay_s)

    def opened(self) -> None:
        """The link is made."""
        self.connect_ends(self)

    def failed(self, reason: str) -> None:
        """Tell the policy, which decides what follows."""
        policy = self.driver.policy
        if reason == "duplicate_identity":
            policy.duplicate_claimed(f"so says {self.channel.peer}", self.channel.peer.id)
        policy.dial_failed(self.channel, self, reason)


class AddressOpening(LinkOpening):
    """A dial to an address whose node is not known."""

    def __init__(self, driver: Process, target: Port | None, done: Callable[[PeerRef | None], None]) -> None:
        self._done = done
        super().__init__(driver, target, None)

    def opened(self) -> None:
        """Say which peer the new link leads to."""
        self.connect_ends(None)
        self._done(self.there.source.peer if self.there is not None else None)

    def failed(self, reason: str) -> None:
        """There is nobody, or this node itself, or a peer that prefers another connection with this node."""
        if reason == "self":
            self._done(self.driver.peer)
        elif reason == "duplicate_link":
            self._await_link(None)
        else:
            self._done(None)

    def _await_link(self, _: None) -> None:
        """Wait for that other connection, which is up already or about to be."""
        target = self.target
        is_linked = target is not None and self.driver.policy.is_linked(target.peer.id)
        if not self.driver.is_alive:
            return
        if is_linked or self._engine.now >= self._deadline:
            peer = target.peer if target is not None and is_linked else None
            self.driver.run(lambda: self._done(peer))
        else:
            self._engine.schedule(self._engine.now + EXISTING_LINK_POLL_S, self._mark, self._await_link)

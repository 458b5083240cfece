"""What a node does for its leaf set at rest: heartbeats, exchanges, its lease, and the search for the departed.

As in MSPastry (section 4.1) a node sends heartbeats to its left neighbour only, and watches its right neighbour only:
who finds a crash tells the rest of the leaf set.
"""

from __future__ import annotations

from typing import Final

from peerd.api import Part, Priority, on_timer
from peerd.overlay.membership import NO_HEARTBEAT, SUSPICION_SHARE, Membership
from peerd.overlay.messages import Heartbeat
from peerd.overlay.state import OverlayState
from peerd.telemetry.schema import LeaseChanged

JITTER: Final = 0.2
HEARTBEATS_MISSED: Final = 1.25
"""So many heartbeat intervals of silence at least, before the right neighbour is suspected."""
LAG_STRETCH: Final = 2.0
"""A node whose own timers are late waits longer for others, by so many times the lag."""
VOUCHERS_ASKED_MAX: Final = 4
"""Peers asked in one exchange whether they still see what this node does not."""
RANDOM_EVERY: Final = 12
"""After so many exchanges with the left neighbour there is one with a random member."""

_HEARTBEAT: Final = Heartbeat()


class Maintenance(Part):
    """Periodic work of one node that has started to join."""

    def __init__(self, state: OverlayState, membership: Membership) -> None:
        self.state = state
        self._host = state.host
        self._membership = membership
        self._ticks = 0
        self._is_settling = False
        self._had_lease = True
        self._was_complete = True
        self._heartbeat_due = float("inf")

    def start(self) -> None:
        """Arm the periodic timers, each at a random phase."""
        config, uniform = self.state.config, self._host.rng.uniform
        self._host.set_timer("heartbeat", uniform(0.0, config.heartbeat_interval))
        self._host.set_timer("exchange", uniform(0.0, config.exchange_interval))
        self._host.set_timer("departed", uniform(0.0, config.departed_interval))

    def _again(self, timer: str, interval_s: float) -> None:
        self._host.set_timer(timer, interval_s * self._host.rng.uniform(1.0 - JITTER, 1.0 + JITTER))

    # Leaf set

    @on_timer("heartbeat")
    def _heartbeat(self, payload: object) -> None:
        """Tell the left neighbour that this node lives; check that the right one does."""
        state, now = self.state, self._host.now()
        heartbeat_s = state.config.heartbeat_interval
        state.history.lag_s = max(0.0, now - self._heartbeat_due)
        self._arm_heartbeat()
        if state.lease.note_event(now):
            self.was_away()
        self._membership.judge()
        self._tell_lease()
        left, right = state.leaves.left_neighbour(), state.leaves.right_neighbour()
        if left is not None:
            self._host.send(left, _HEARTBEAT, Priority.URGENT)
        patience_s = max(SUSPICION_SHARE * state.config.failure_timeout, HEARTBEATS_MISSED * heartbeat_s)
        if right is not None and state.silence_s(right.id) > patience_s + LAG_STRETCH * state.history.lag_s:
            self._membership.suspect(right, NO_HEARTBEAT)

    def _arm_heartbeat(self) -> None:
        interval_s = self.state.config.heartbeat_interval
        self._heartbeat_due = self._host.now() + interval_s
        self._host.set_timer("heartbeat", interval_s)

    def was_away(self) -> None:
        """This node was not running for a while: it may have been given up, so it asks before it serves or accuses."""
        self._host.count("peerd_overlay_absences_total")
        for member in self.state.leaves:
            self._membership.exchange(member)
        self._tell_lease()

    def _tell_lease(self) -> None:
        state = self.state
        is_held = state.lease.is_held(self._host.now())
        if is_held != self._had_lease and state.is_ready:
            self._had_lease = is_held
            left, right = state.leaves.left_neighbour(), state.leaves.right_neighbour()
            self._host.gauge("peerd_overlay_lease_held", float(is_held))
            self._host.emit(
                LeaseChanged(
                    held=is_held,
                    left_silence_s=None if left is None else state.silence_s(left.id),
                    right_silence_s=None if right is None else state.silence_s(right.id),
                )
            )

    @on_timer("departed")
    def _departed(self, payload: object) -> None:
        """Look for a peer that was removed."""
        self._again("departed", self.state.config.departed_interval)
        self._membership.look_for_departed()

    def exchange(self) -> None:
        """Compare leaf sets with the left neighbour, which renews both leases, and at times with a random member.

        A leaf set that was incomplete the last time too is compared with every member's.
        """
        state = self.state
        self._again("exchange", state.config.exchange_interval)
        leaves = state.leaves
        self._membership.review()
        if not leaves.is_complete:
            self._membership.repair()
            if not self._was_complete:  # whom the repairs since then have asked does not know who is missing, or lies
                for member in tuple(leaves):
                    self._membership.exchange(member)
        self._was_complete = leaves.is_complete
        if not leaves:
            return
        self._ticks += 1
        left = leaves.left_neighbour()
        if left is not None:
            self._membership.exchange(left)
            self._host.cancel_timer("heartbeat")  # it has just heard from this node
            self._arm_heartbeat()
        for voucher in state.vouches.vouchers()[:VOUCHERS_ASKED_MAX]:
            self._membership.exchange(voucher)
        if left is None or self._ticks % RANDOM_EVERY == 0:
            self._membership.exchange(self._host.rng.choice(tuple(leaves)))

    def leaf_set_changed(self) -> None:
        """Check with both neighbours soon; several changes at once cause one check."""
        if not self._is_settling and not self.state.is_leaving:
            self._is_settling = True
            settle_s = self.state.config.settle
            self._host.set_timer("settle", settle_s * self._host.rng.uniform(1.0 - JITTER, 1.0 + JITTER))

    @on_timer("settle")
    def _settle(self, payload: object) -> None:
        """The leaf set changed a moment ago."""
        self._is_settling = False
        self._membership.verify_neighbours(only_new=True)
        self._membership.review()
        if not self.state.leaves.is_complete:
            self._membership.repair()

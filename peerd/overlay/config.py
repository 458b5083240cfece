"""Parameters of the overlay: the table ``[overlay]``; docs/overlay.md has them all. Defaults suit a LAN."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from peerd.api import PluginConfig
from peerd.quantities import Age, Interval, format_duration, misfit, setting


class OverlayConfig(PluginConfig):
    """The overlay's time limits, and how often it sends what."""

    heartbeat_interval: Interval = setting(
        "7.5s",
        "Silence after which a node sends its left neighbour a heartbeat. "
        "Costs 1/heartbeat_interval messages a second a node; lower finds crashes sooner.",
        reloads=True,
    )
    failure_timeout: Interval = setting(
        "15s",
        "Silence of the right neighbour after which it is suspected and probed; at least twice "
        "heartbeat_interval. Raise it on hosts that pause (swapping, laptops); lower it for faster detection.",
    )
    probe_attempts: Annotated[int, Field(ge=1, le=8)] = setting(
        3, "Unanswered probes after which a peer is removed. Raise it on lossy links.", reloads=True
    )
    probe_retry: Interval = setting(
        "300ms",
        "Pause before a probe is repeated; a refused connection fails at once, and this is what gives "
        "a restarting peer a chance.",
        reloads=True,
    )
    ack_timeout_min: Interval = setting(
        "500ms",
        "Least time to wait for a hop's answer; the actual one is smoothed RTT + 4 x its deviation, at least RTT + a "
        "quarter, within this and ack_timeout_max. Lower re-routes sooner, at the risk of false suspicion.",
    )
    ack_timeout_max: Interval = setting("3s", "Most time to wait for a hop's answer. Raise it on satellite-like links.")
    ack_timeout_initial: Interval = setting(
        "1500ms", "Time to wait for a peer whose RTT is not known yet; it includes dialling it."
    )
    route_deadline: Interval = setting(
        "30s",
        "How long one hop tries to pass a routed message on before it drops (and counts) it. "
        "Longer survives longer repairs, and holds messages longer.",
        reloads=True,
    )
    hold_retry: Interval = setting(
        "250ms", "Pause before a held message is tried again (its root is suspected, or still joining).", reloads=True
    )
    join_retry_min: Interval = setting(
        "500ms",
        "First pause after a join round that reached nobody; it doubles up to join_retry_max, "
        "each time scaled by a random factor in [0.5, 1.5).",
        reloads=True,
    )
    join_retry_max: Interval = setting(
        "30s", "Longest pause between join rounds. Lower rejoins sooner after a long outage.", reloads=True
    )
    join_round: Interval = setting(
        "15s", "How long one join round may take before it is given up; more than dialling takes.", reloads=True
    )
    settle: Interval = setting(
        "500ms",
        "After a change of the leaf set, the time to the exchange with both neighbours that checks it. "
        "Lower converges faster when many nodes join at once, for more messages.",
        reloads=True,
    )
    exchange_interval: Interval = setting(
        "20s",
        "Between two periodic leaf-set exchanges with the left neighbour (+-20 % jitter); every twelfth time with a "
        "random member, too. Costs 2.2/exchange_interval messages a second a node; at most 2/3 of lease.",
    )
    lease: Interval = setting(
        "30s",
        "How long a node answers as root after it last heard from both sides of its leaf set. "
        "Lower ends double service after a cut sooner; it must outlive one exchange and its repetition.",
    )
    table_interval: Interval = setting(
        "120s",
        "Longest pause between two questions to near peers, in search of nearer entries for the routing table (+-20 % "
        "jitter; more often after a join and while that finds any). Costs some 3/table_interval messages a second; "
        "lower finds near entries sooner.",
        reloads=True,
    )
    target_loss: Annotated[float, Field(gt=0.0, lt=1.0)] = setting(
        0.1,
        "Share of routes that may meet a dead entry before any re-routing: the period of the entries' probes follows "
        "from it and the observed failures. Lower probes more often.",
        reloads=True,
    )
    table_probe_min: Interval = setting(
        "30s", "Shortest period between two probes of one routing-table entry, however many peers fail.", reloads=True
    )
    table_probe_max: Interval = setting(
        "20m", "Longest period between two probes of one routing-table entry, when nobody fails.", reloads=True
    )
    failed_memory: Interval = setting(
        "60s",
        "How long a failed peer stays ignored when others mention it; longer than its failure takes to "
        "be found everywhere, about failure_timeout + 4 x ack_timeout_max. A message from the peer itself ends it.",
    )
    vouch_delay: Interval = setting(
        "8s",
        "After the removal of a silent member, the time to ask both neighbours if they still see it: then messages for "
        "it go through them. Longer than a neighbour takes to find a dead peer for itself.",
    )
    departed_interval: Interval = setting(
        "10s",
        "After a mass loss, between two searches for one of the lost peers. In ordinary times a removed member is "
        "looked for after six times as long, then after pauses that double, up to 1 h. Lower merges two rings sooner.",
    )
    departed_memory: Age = setting(
        "72h", "How long removed peers (at most 256) are remembered, to find them again after a partition."
    )
    partition_share: Annotated[float, Field(gt=0.0, le=1.0)] = setting(
        0.25,
        "Share of the known peers lost within 2 x failure_timeout at which a partition is suspected. "
        "Lower suspects (and looks for the lost) after smaller losses.",
    )
    partition_memory: Age = setting(
        "1h", "How long a suspected partition is acted upon when none of the lost peers comes back.", reloads=True
    )
    expect_for: Age = setting(
        "24h",
        "How long a member that went without goodbye is expected: answers count it as missing until it is back, left, "
        "was denied, or `peerd forget` names it. At least the longest outage after which a node may return.",
    )
    reunion_interval: Interval = setting(
        "5m",
        "Between two dials of a configured address, to find out whether it is in another ring of this cluster "
        "(+-50 % jitter). Lower merges rings that never knew each other sooner, for some 6 messages each time.",
        reloads=True,
    )
    lookup_retry: Interval = setting(
        "2s", "Pause before an unanswered lookup is sent again, within its own time-out.", reloads=True
    )

    @model_validator(mode="after")
    def _check_order(self) -> OverlayConfig:
        if self.failure_timeout < 2 * self.heartbeat_interval:
            least = format_duration(2 * self.heartbeat_interval)
            raise misfit("overlay.failure_timeout", f"expected at least 2 x overlay.heartbeat_interval = {least}")
        if self.lease < 1.5 * self.exchange_interval:
            least = format_duration(1.5 * self.exchange_interval)
            raise misfit("overlay.lease", f"expected at least 1.5 x overlay.exchange_interval = {least}")
        if not self.ack_timeout_min <= self.ack_timeout_initial <= self.ack_timeout_max:
            raise misfit("overlay.ack_timeout_initial", "expected a value from ack_timeout_min to ack_timeout_max")
        if self.table_probe_min > self.table_probe_max:
            raise misfit("overlay.table_probe_max", "expected at least overlay.table_probe_min")
        if self.join_retry_min > self.join_retry_max:
            raise misfit("overlay.join_retry_max", "expected at least overlay.join_retry_min")
        return self

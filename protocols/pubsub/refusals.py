"""Subscriptions that were refused, counted by the member that asked: so operators see who sends what no node takes."""

from __future__ import annotations

from typing import Final

from peerd.api import Host, Metric
from peerd.ids import NodeId, format_id
from peerd.lib.filter import FilterTooLarge

MEMBERS_MAX: Final = 256
"""So many members are counted by their ids; all further ones together, as `OTHERS`."""
OTHERS: Final = "others"
DIGITS: Final = 8
"""Of a member's id, as people see it elsewhere."""
QUOTA: Final = "quota"
WORK: Final = "filter_work"
FILTER: Final = "filter"
"""Reasons: a limit of the member is reached; it wants too much read at once; the filter makes no sense. What is too
large is counted by the name of the limit that it breaks."""

METRICS: Final = (
    Metric(
        "peerd_pubsub_subscriptions_refused_total",
        "counter",
        "Subscriptions refused here, by member; without proof what came over other nodes, whose sender may be made up.",
        ("member", "reason", "proof"),
    ),
)


class Refusals:
    """Counts what is refused, with a bounded number of names."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._members: set[NodeId] = set()

    def count(self, member: NodeId, reason: str | Exception, *, is_proved: bool) -> None:
        """A subscription of a member was refused."""
        if len(self._members) < MEMBERS_MAX:
            self._members.add(member)
        name = format_id(member)[:DIGITS] if member in self._members else OTHERS
        if isinstance(reason, Exception):
            reason = reason.limit.lower() if isinstance(reason, FilterTooLarge) else FILTER
        proof = "link" if is_proved else "none"
        self._host.count("peerd_pubsub_subscriptions_refused_total", member=name, reason=reason, proof=proof)

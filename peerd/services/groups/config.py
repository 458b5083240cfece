"""Parameters of groups: the table ``[groups]``; docs/groups.md says what groups promise."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from peerd.api import PluginConfig
from peerd.quantities import Count, Interval, Size, between_sizes, format_duration, misfit, setting


class GroupsConfig(PluginConfig):
    """The trees' width and size, and their time limits."""

    children_max: Annotated[int, Field(ge=2, le=256)] = setting(
        16,
        "Children that this node takes in one group; a further one is sent on to one of them. Depth is about "
        "log(members)/log(children_max); lower spreads the copies of a multicast over more nodes.",
    )
    trees_max: Count = setting(
        1024,
        "Trees that this node carries for others; above it, joins pass by to the next node on their way. "
        "Groups that its own plugins join are not counted.",
    )
    memberships_max: Count = setting(
        256, "Groups that one plugin may create or join here; above it create and join raise Unavailable."
    )
    refresh_interval: Interval = setting(
        "5s",
        "Between two questions to a parent that has been silent; one carries all groups under that parent. "
        "Costs 2/refresh_interval messages a second a distinct parent; lower finds a silent parent sooner.",
    )
    refresh_timeout: Interval = setting(
        "2s", "Time to wait for the parent's answer; at most refresh_interval / refresh_attempts."
    )
    refresh_attempts: Annotated[int, Field(ge=1, le=8)] = setting(
        2,
        "Unanswered questions after which the parent is given up, unless a multicast of it came meanwhile. "
        "Raise it on lossy links.",
    )
    lease: Interval = setting(
        "30s",
        "How long a child stays one without a question from it; at least 3 x refresh_interval. Lower forgets dead "
        "children sooner; a child that only receives multicasts asks every lease / 3.",
    )
    orphan_timeout: Interval = setting(
        "10s",
        "How long a node waits for a parent that has itself lost the way to the root, before it looks for another.",
    )
    join_timeout: Interval = setting(
        "2s",
        "First wait for somebody to take a join; doubles up to join_retry_max, each time scaled by a random factor in "
        "[0.8, 1.2).",
    )
    join_retry_max: Interval = setting("30s", "Longest wait between two joins. Lower rejoins sooner after an outage.")
    hold: Interval = setting(
        "1s",
        "How long the root of a group it knows nothing of keeps a multicast or anycast, for a tree that is just moving "
        "to it, before it says that there is no such group. After the loss of a neighbour, which may have been the "
        "root, it keeps them for as long as the tree may take to notice.",
    )
    held_max: Count = setting(256, "Messages kept in this way at a time; above it they are refused at once.")
    publish_timeout: Interval = setting(
        "2500ms", "Time to wait for the root's word on a multicast before it is sent again."
    )
    publish_attempts: Annotated[int, Field(ge=1, le=16)] = setting(
        10,
        "How often a multicast is sent towards the root before its outcome is called unknown. With publish_timeout it "
        "should outlast the death of a root, the notice of it and the repair of the tree.",
    )
    outstanding_max: Count = setting(
        1024, "Multicasts and anycasts of this node without an outcome; above it they raise Unavailable."
    )
    anycast_timeout: Interval = setting(
        "15s",
        "Time for an anycast to find somebody: about 2 round trips for each member that declines. Raise it for large "
        "groups in which few accept.",
    )
    dedupe_window: Annotated[int, Field(ge=128, le=65536)] = setting(
        512,
        "Multicasts of one group that are remembered as passed on, and as heard by the member here; at least "
        "2 x replay_messages. About 100 B each.",
    )
    replay_messages: Annotated[int, Field(ge=0, le=1024)] = setting(
        256,
        "Latest multicasts of one group kept for a child that comes over from a lost parent: at a rate of r a second "
        "they bridge replay_messages / r seconds. 0: none, and each change of parent may lose some.",
    )
    replay_bytes: Annotated[Size, between_sizes("0B", "1GiB")] = setting(
        "8MiB", "Memory for all that is kept for children; the oldest goes first."
    )

    @property
    def repair_s(self) -> float:
        """Seconds within which the children of a silent parent have noticed that, and have joined again."""
        return 1.2 * self.refresh_interval + self.refresh_timeout * self.refresh_attempts + self.join_timeout

    @model_validator(mode="after")
    def _check_order(self) -> GroupsConfig:
        if self.refresh_timeout * self.refresh_attempts > self.refresh_interval:
            most = format_duration(self.refresh_interval / self.refresh_attempts)
            raise misfit("groups.refresh_timeout", f"expected at most refresh_interval / refresh_attempts = {most}")
        if self.lease < 3 * self.refresh_interval:
            least = format_duration(3 * self.refresh_interval)
            raise misfit("groups.lease", f"expected at least 3 x groups.refresh_interval = {least}")
        if self.dedupe_window < 2 * self.replay_messages:
            raise misfit("groups.dedupe_window", f"expected at least 2 x replay_messages = {2 * self.replay_messages}")
        return self

"""Parameters of measurement queries: the table ``[protocols.measurement]``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from peerd.api import Host, PluginConfig
from peerd.ids import NodeId
from peerd.quantities import Duration, Interval, between_durations, setting
from protocols.measurement.guarantee.words import Terms
from protocols.measurement.messages import TAG_BYTES_MAX, TAG_KEY, TAG_VALUE_BYTES_MAX, TAGS_MAX
from protocols.measurement.sources.network import NetworkSource
from protocols.measurement.sources.settings import Smoothed, Sources
from protocols.measurement.sources.smoothing import Smoothing
from protocols.measurement.sources.source import MeasurementSource
from protocols.measurement.sources.system import MachineSource

RESERVED: Final = frozenset({"node", "address", "instance", "peer"})
"""Names that mean something else wherever tags are used."""


def _check_tags(tags: dict[str, str]) -> dict[str, str]:
    for key, value in tags.items():
        if re.fullmatch(TAG_KEY, key) is None or key in RESERVED:
            raise ValueError(
                f"{key[:70]!r} is no name of a tag: expected a letter or _, and letters, digits, _, . and - after it, "
                f"{TAG_BYTES_MAX} at most, and not {', '.join(sorted(RESERVED))}"
            )
        if len(value.encode()) > TAG_VALUE_BYTES_MAX:
            raise ValueError(f"the tag {key} has more than {TAG_VALUE_BYTES_MAX} bytes")
    return tags


def _check_region(tag: str) -> str:
    return tag and next(iter(_check_tags({tag: ""})))


Tags = Annotated[dict[str, str], Field(max_length=TAGS_MAX), AfterValidator(_check_tags)]
RegionTag = Annotated[str, AfterValidator(_check_region)]
Patience = Annotated[Duration, between_durations("1s", "1h")]


class MeasurementConfig(PluginConfig):
    """The settings of measurement queries: what this node says of itself, and how old a value may be."""

    tags: Tags = setting(
        {},
        'What this node is, for queries: tags = { role = "web", rack = "3" }.',
        reloads=True,
    )
    period: Interval = setting(
        "1s",
        "Between two readings of what the system measures. Longer: less work here. Shorter: younger values; what goes "
        "over the network is decided by bounds, not by this.",
    )
    max_age: Patience = setting(
        "30s",
        "A value of another node that nobody has vouched for in this time is stale, whoever asks. Queries may ask for "
        "less (STALE).",
    )
    update_interval: Interval = setting(
        "5s",
        "A node that holds a value of this one hears at least so often that it still counts, also when nothing changes "
        "(the time-out of section 2.2); sooner when it has asked for that.",
    )
    ask_interval: Interval = setting(
        "10s", "A node that holds values asks their provider so often to go on. Below a third of max_age."
    )

    placing: Literal["auto", "owners", "tree", "squares"] = setting(
        "auto",
        "How questions find values. owners: each owner is asked. tree: over the routes to one key, where nodes on the "
        "way cache (chapter 4). squares: by way of nodes that cache and are spread over the latency space (chapter 3). "
        "auto: whichever of these has cost this node least lately. What clients watch or ask for often is held: from "
        "the owners; with tree, and with auto where these are more than four, from nodes that hold it already.",
    )
    region_tag: RegionTag = setting(
        "",
        'A tag by which nodes are asked about, such as "role". Questions for nodes with the same value of it go by way '
        "of the same caches, wherever these nodes are. Empty: nodes near each other in the network share caches. The "
        "same on all nodes.",
    )
    signed: bool = setting(
        False,
        "This node signs what it measures, and believes of another node than its owner only what its owner has signed: "
        "no cache can make up a value, not even until a spot check finds it. 64 bytes of each new bound that is told, "
        "and 0.2 ms of the processor of each node that is told it. The same on all nodes: values of one that does not "
        "sign are had from itself alone.",
    )
    cache_values: Annotated[int, Field(ge=0, le=1_000_000)] = setting(
        1000,
        "Values of other nodes that this one caches because it is asked for them often; what clients watch does not "
        "count. 0: none.",
    )
    cache_updates: Annotated[float, Field(gt=0.0, le=1e6)] = setting(
        50.0, "Updates a second that this node sends at most for what it caches so (T_update of section 4.2.5)."
    )
    decide_interval: Interval = setting(
        "16s",
        "How often this node decides what to cache, by what it was asked for since (section 4.2.5). Shorter: follows "
        "what is asked sooner, and changes its mind more often.",
    )
    describe_interval: Interval = setting(
        "5m",
        "How often this node describes itself anew to the ring, if nothing changes. So long after the loss of all "
        "copies of its description it may be unknown to others.",
    )
    system: bool = setting(
        True,
        "Measure processor, memory, disk, network and processes of this machine, and round trips to neighbours on the "
        "ring. In a scenario of the simulator: false, since a simulated node has no machine.",
    )
    bandwidth_interval: Annotated[Duration, between_durations("0s", "1d")] = setting(
        "0s",
        "How often a neighbour on the ring, each in its turn, is asked for 256 KiB, to measure the bandwidth from it "
        "to here. 5m: less than 1 KiB a second. 0s: never.",
    )
    disk: str = setting("/", "Folder whose file system is measured as disk.")
    sources: Sources = setting(
        {},
        "What else is measured here, each in a table of its own, such as [protocols.measurement.sources.queue] with "
        'kind = "file", path = "/run/queue/length" and period = "5s".',
    )
    smoothed: Smoothed = setting(
        {},
        'Means and deviations over a time: cpu_mean_5m = { of = "cpu", mean = "5m" }; cpu_deviation_8h = '
        '{ of = "cpu", deviation = "8h" }.',
    )

    def terms(self) -> Terms:
        """The times of all agreements."""
        return Terms(self.max_age, self.update_interval, self.ask_interval)

    def make_sources(self, host: Host, bandwidth: Mapping[NodeId, float]) -> list[MeasurementSource]:
        """What this node monitors. ``bandwidth``: to others, as it is measured."""
        machine, network = MachineSource(self.period, Path(self.disk)), NetworkSource(host, self.period, bandwidth)
        system = [machine, network] if self.system else []
        return [*system, *(each.source(name) for name, each in self.sources.items())]

    def smoothings(self) -> list[Smoothing]:
        """What is derived of that."""
        return [each.smoothing(name) for name, each in self.smoothed.items()]

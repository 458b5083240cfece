"""Parameters of the aggregation protocol: the table ``[protocols.aggregation]``."""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from peerd.api import PluginConfig
from peerd.frozen import Frozen
from peerd.quantities import Duration, Interval, Size, between_durations, between_sizes, setting
from protocols.aggregation.patience import TreeSettings
from protocols.aggregation.patterns import RegexEngine

FILES_MAX: Final = 200_000
"""Default of `FileSelection.files_max`."""
BYTES_MAX: Final = 64 * 1024**3
"""Default of `FileSelection.bytes_max`."""
RoundTime = Annotated[Duration, between_durations("100ms", "1d")]
ROUND_S_MAX: Final = 86_400.0
"""No round lasts longer on a node, whatever its requester says: the longest deadline that can be configured."""
Pause = Annotated[Duration, between_durations("0s", "1h")]
WorkerMemory = Annotated[Size, between_sizes("64MiB", "64GiB")]
WorkerTime = Annotated[Duration, between_durations("1s", "1d")]


class Share(Frozen):
    """One of ``parts`` disjoint shares of all relative paths, the same on every machine."""

    index: int
    parts: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.parts:
            raise ValueError(f"a share is k/n with 0 <= k < n, not {self.index}/{self.parts}")

    @staticmethod
    def parse(text: str) -> Share:
        """Read ``"k/n"``. Raises ``ValueError``."""
        match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
        if match is None:
            raise ValueError(f"a share is k/n, such as 0/8, not {text[:40]!r}")
        return Share(int(match[1]), int(match[2]))

    def owns(self, path: str) -> bool:
        """Whether the relative path (``/`` between segments) hashes to this share."""
        digest = hashlib.sha256(path.encode("utf-8", "surrogateescape")).digest()
        return int.from_bytes(digest[:8], "big") % self.parts == self.index


class FileSelection(Frozen):
    """Which of the files that match the query's glob this node reads, and how much of them at most."""

    share: Share | None = None
    """The share of the files that this node reads; ``None``: all of them."""
    files_max: int = FILES_MAX
    """At most this many files are read; those beyond are counted as skipped."""
    bytes_max: int = BYTES_MAX
    """Files that would pass this total are counted as skipped."""


def _check_share(text: str) -> str:
    if text:
        Share.parse(text)
    return text


class AggregationConfig(PluginConfig):
    """The settings of aggregation: what this node contributes, and the time limits of a round."""

    data_root: str = setting(
        "",
        "Folder whose files queries read; nothing outside it is ever opened. Empty: this node may ask, but has no "
        "data to answer with, and says so.",
        reloads=True,
    )
    share: Annotated[str, AfterValidator(_check_share)] = setting(
        "",
        "k/n: this node reads only the files whose path hashes to part k of n (from 0). For nodes that see the same "
        "folder (a demo, a shared file system), so that each file counts once. Empty: all files.",
        reloads=True,
    )
    regex_engine: RegexEngine = setting(
        "re2",
        "What runs the patterns of queries. re2: Google's RE2, whose time grows with the line and no faster. python: "
        "Python's re, for look-around and references to groups; one hostile pattern then keeps a worker busy until its "
        "round ends, so only where all who may ask are trusted.",
        reloads=True,
    )
    extraction_memory: WorkerMemory = setting(
        "512MiB",
        "Memory (address space) of the worker process that reads this node's data for one query; at most four run at a "
        "time. A query that needs more is ended, and the answer names this node as missing, with the reason.",
        reloads=True,
    )
    extraction_cpu: WorkerTime = setting(
        "1h",
        "Processor time that one query may use on this node. Lower it where long rounds of others must not keep the "
        "machine busy; no worker outlives its round in any case.",
        reloads=True,
    )
    deadline: RoundTime = setting(
        "60s",
        "How long a round may take unless the request says otherwise; afterwards every node forgets it, and the "
        "requester answers with what it has. Longer: slow nodes still count. Shorter: quicker answers.",
        reloads=True,
    )
    timeout_base: Interval = setting(
        "2s",
        "Silence after which a prefix level is taken as dead: timeout_base + timeout_per_node x (estimated nodes "
        "behind the prefix), at most timeout_max. Higher: fewer live nodes skipped. Lower: failures cost less time.",
        reloads=True,
    )
    timeout_per_node: Pause = setting(
        "50ms", "The part of a level's time-out that grows with its estimated nodes.", reloads=True
    )
    timeout_max: Interval = setting("30s", "Cap of a level's time-out.", reloads=True)
    invite_interval: Interval = setting(
        "500ms",
        "How often a waiting node repeats its invitations, where values ride along sooner at first: a quarter of "
        "timeout_base or less, so that one lost message does not cost a level.",
        reloads=True,
    )
    invites_max: Annotated[int, Field(ge=1, le=64)] = setting(
        8, "Known nodes of a level invited at a time; where values ride along, one at first.", reloads=True
    )
    random_invites: Annotated[int, Field(ge=0, le=16)] = setting(
        2, "Random ids of the prefix invited at a time, where the leaf set does not know the whole level.", reloads=True
    )
    reserve: Interval = setting(
        "5s",
        "How long at least a node that agreed to swap waits for the partner to open the swap, before it looks "
        "elsewhere; for a partner that is far away it waits for eight times the round trip.",
        reloads=True,
    )
    settle: Pause = setting(
        "1s",
        "How long at most the requester waits for a fuller result after an incomplete one came; less, once no tree can "
        "bring more.",
        reloads=True,
    )
    swap_deadline: RoundTime = setting(
        "2m", "Longest single swap of a round; a stalled one ends earlier, by swap.stall_timeout.", reloads=True
    )
    pieces_from: Size = setting(
        "1MiB",
        "From this size on this node's value of groups goes in pieces in rings of 4 to 17 nodes: each sends about "
        "one value, not log2 of their number. Smaller values do so if others wait for it already. In rings of up to "
        "64 nodes whoever asks decides for all, with its own setting times the number of nodes / 17. Very high on all "
        "nodes: never.",
        reloads=True,
    )
    census_max: Annotated[int, Field(ge=0)] = setting(
        4096,
        "Up to this estimated ring size every node tells the requester that it takes part, so that the answer can "
        "name who is missing; one small message a node. Above: the missing are only counted, by estimate.",
        reloads=True,
    )
    rounds_max: Annotated[int, Field(ge=1, le=1024)] = setting(
        16,
        "Open rounds a node holds. For one more, the round that has waited longest for nothing but its end is "
        "forgotten, if there is any; else the new one is declined.",
        reloads=True,
    )
    rounds_per_requester_max: Annotated[int, Field(ge=1, le=1024)] = setting(
        8, "Open rounds a node holds for one requester; of these, too, the idle ones make room.", reloads=True
    )

    def tree_settings(self) -> TreeSettings:
        """Return the settings that the trees use."""
        return TreeSettings(
            timeout_base_s=self.timeout_base,
            timeout_per_node_s=self.timeout_per_node,
            timeout_max_s=self.timeout_max,
            invite_interval_s=self.invite_interval,
            reserve_s=self.reserve,
            invites_max=self.invites_max,
            random_invites=self.random_invites,
        )

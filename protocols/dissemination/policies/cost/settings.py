"""Parameters of the cost-based policy, in a stream's record. docs/protocols/coherency-trees.md explains them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, ValidationError

from peerd.quantities import ConfigSection, Duration, between_durations, setting
from protocols.dissemination.stream import what_is_wrong

Period = Annotated[Duration, between_durations("1s", "1h")]


class CostSettings(ConfigSection):
    """How the tree of one stream adapts to what its nodes and links cost."""

    window: Period = setting(
        "5s",
        "How long rates are counted before they are looked at (T_e of Zhou, Ooi and Tan). Longer is steadier and costs "
        "less; shorter notices changes sooner. At most half of round.",
    )
    tau: Annotated[float, Field(ge=0.01, le=10.0)] = setting(
        0.2,
        "A number is told to the parent when it is 1 + tau times the one told before, or less than 1/(1 + tau) of it. "
        "Higher costs fewer messages; lower makes decisions more exact.",
    )
    round: Period = setting(
        "20s",
        "Between two rounds, in each of which every inner node may make one change (T_d). Shorter adapts sooner, and "
        "decides on figures that are not settled yet.",
    )
    gain_min: Annotated[float, Field(ge=0.0, le=1.0)] = setting(
        0.0005,
        "A change is made when it is thought to spare this share of what is lost at the steps that it touches. Higher "
        "means fewer moves; 0 follows every fluctuation.",
    )
    order_timeout: Annotated[Duration, between_durations("3s", "5m")] = setting(
        "10s",
        "A move that was ordered and is not over by then is given up. Longer only where links take seconds.",
    )
    join_asks: Annotated[int, Field(ge=1, le=256)] = setting(
        24,
        "So many members a newcomer asks at most before it chooses a parent. More finds a better place at once, and "
        "costs that many messages; fewer leaves it to the adaptation.",
    )
    collect_s: Annotated[Duration, between_durations("0s", "1s")] = setting(
        "0s",
        "What one report of a child or grandchild takes a node (t^e of equation 7). 0: too little to count. Higher "
        "limits the fan-out.",
    )
    decide_s: Annotated[Duration, between_durations("0s", "1s")] = setting(
        "25us",
        "What it takes to work out one possible change (t^d of equation 7); `peerd lab` measures it: 25us for a node "
        "with 6 children that have 6 each. Higher limits the fan-out.",
    )


def read_settings(given: Mapping[str, Any]) -> CostSettings:
    """Check settings. Raises ``ValueError`` that names the key and the reason."""
    try:
        found = CostSettings.model_validate(dict(given), strict=False)
    except ValidationError as error:
        raise ValueError(what_is_wrong(error, CostSettings)) from error
    if found.window * 2 > found.round:
        raise ValueError("window: at most half of round, or decisions are made on figures of the tree before")
    return found

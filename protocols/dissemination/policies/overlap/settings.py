"""The parameters of CoDD's policies (figure 8 and section 5.5 of the paper), as a stream's record may set them."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from peerd.quantities import Interval, setting
from protocols.dissemination.policies.overlap.messages import WINDOW_MAX

Share = Annotated[float, Field(ge=0.0, le=1.0)]


class OverlapSettings(BaseModel):
    """What may differ from stream to stream. The fan-out limit (``f``) is not here: each node sets its own.

    Of figure 8, ``n``, ``d``, ``s`` and ``cf`` describe the load of an experiment, so they are no settings either.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    # What is known of the stream
    window: Annotated[int, Field(ge=100, le=WINDOW_MAX)] = setting(
        2000,
        "Items of the stream of which each node remembers which it had, wanted, and sent to each child. Newcomers are "
        "placed by all of it. Raise it where few items are wanted: chance decides less. Lower it to save memory: up "
        "to window / 4 bytes for each child.",
    )
    compared: Annotated[int, Field(ge=50, le=WINDOW_MAX)] = setting(
        400,
        "The newest items of the window that decide about a move: overhead of n under p = |docs(n) minus docs(p)| / "
        "compared. Lower it where interests change fast (about twice the items between two changes); raise it where "
        "they are steady, or items are wanted by few.",
    )
    young: Annotated[int, Field(ge=1, le=10_000)] = setting(
        20,
        "Statistics with fewer items than this that a newcomer would have wanted are too young; interests are "
        "compared by their texts instead (structural match). Raise it to trust the texts for longer.",
    )

    # Joining
    answer_timeout: Interval = setting(
        "2s",
        "How long a newcomer waits for the answers of the stream's seeds, and the producer for those of a search, "
        "before it goes on with what it has. Raise it on slow networks; lower it to join sooner when seeds are dead.",
    )
    tie: Share = setting(
        0.02,
        "Two offers whose overheads (items in vain for each item of the stream) differ by less than this are a tie, "
        "which the nearer node wins, then the one with fewer children. Raise it to prefer near nodes.",
    )

    # Reorganisation
    reorganise: bool = setting(True, "Whether the tree is ever reorganised (CoDD-R), or only grows (CoDD-NR).")
    request_items: Annotated[int, Field(ge=10, le=1_000_000)] = setting(
        10,
        "Items (r) that a node must receive between two requests. Raise it for fewer moves; at 20 changes of interests "
        "are followed later. The paper's experiments have 200.",
    )
    children: Annotated[int, Field(ge=1, le=16)] = setting(
        2,
        "Children that a node asks to have moved at a time, those with the least overlap. The paper has 1. Raise it "
        "where interests change so fast that one child in request_items items is too slow.",
    )
    threshold: Share = setting(
        0.1,
        "Spurious share (r_thresh) = items received in vain / items received, above which a node asks to have a "
        "child moved. Lower it for less waste and more moves; raise it where many nodes want most of the stream.",
    )
    delta: Share = setting(
        0.1,
        "The part of a place's overhead that a move must save: gain = (overhead here - overhead there) / overhead "
        "here. 0: every move that gains anything. Raise it for fewer moves (figure 22).",
    )
    top: Annotated[int, Field(ge=1, le=1000)] = setting(
        15,
        "Moves that are made of one batch of requests, those with the greatest overhead first (c of top-c); twice as "
        "many requests are looked at, at most. Raise it to repair the tree faster after a change; 10 to 20 come "
        "close to no limit (figure 20).",
    )
    batch_interval: Interval = setting(
        "500ms", "How long a granter collects requests before it looks at the best of them. Lower: sooner, less choice."
    )
    level_gain: Share = setting(
        0.01,
        "What a level of the tree counts for, in items in vain for each item of the stream: a place that is a level "
        "deeper must save so much more. Raise it for a lower tree, lower it for less waste.",
    )
    moves_per_minute: Annotated[int, Field(ge=1, le=10_000)] = setting(
        600,
        "Moves that one node orders of those below it in a minute at most, whoever asks for how many. Lower it where "
        "moving is costly (many interests, slow links).",
    )

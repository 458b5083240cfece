"""The smallest message of every kind, sent by a member: what comes back to it, and what others are made to send."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from peerd.messages import Message, message_type
from peerd.overlay.messages import (
    Broadcast,
    EntriesReply,
    EntriesRequest,
    Heartbeat,
    JoinReply,
    JoinRequest,
    LeafSetProbe,
    LeafSetReply,
    Leave,
    Route,
    ViewReply,
    ViewRequest,
)
from peerd.services.records.messages import ReplicaGet, ReplicaGot
from peerd.wire.frames import frame_size
from protocols.aggregation.messages import AskStart, StartRound
from protocols.dissemination.messages import (
    Attach,
    DetachFromParent,
    Dismiss,
    ItemBatch,
    ItemPart,
    MoveAway,
    ReplayItems,
    StreamGap,
    TreeAnswer,
    TreeQuestion,
    Widen,
)
from protocols.dissemination.policies.cost.messages import CostReport
from protocols.dissemination.policies.overlap.messages import GetOverhead, MoveOrder, Reorganise
from protocols.pubsub.delivering.messages import HoldEvents
from protocols.pubsub.messages import ExplainAnswer, ExplainQuestion, InsertSub, ProbePub, TransferSub
from tests.support.amplification import NODES, background, caused_by, names, verbs
from tests.support.long_cases import cases

PAGE: Final = Path(__file__).parents[2] / "docs" / "amplification.md"
BACK_RATIO_MAX: Final = 10.0
READS: Final[dict[type[Message], type[Message]]] = {
    JoinRequest: JoinReply,
    LeafSetProbe: LeafSetReply,
    ViewRequest: ViewReply,
    EntriesRequest: EntriesReply,
    ReplicaGet: ReplicaGot,
    AskStart: StartRound,
    ExplainQuestion: ExplainAnswer,
    TreeQuestion: TreeAnswer,
}
"""Questions of a few bytes whose answers are what the asker wants to know: one answer, over the asker's own link."""
ON_THE_WAY_MAX: Final = 4
"""Messages to others for one that is routed: it and its acknowledgement, at each hop of a small ring."""
NEW_PARENT: Final = 12
"""Messages of a node that loses its parent, to those that it tries: question, answer, and a check of the way up."""
NEW_SECOND: Final = 6
"""And of looking for another second parent, once it has a parent: question and answer, and what the old one is told."""
FAN_OUT: Final[dict[type[Message], int]] = {
    StartRound: 50 * NODES,
    Leave: 4 * NODES,
    ProbePub: 4 * NODES,
    HoldEvents: 4 * NODES,
    TransferSub: 2 * ON_THE_WAY_MAX,
    **dict.fromkeys(
        (ItemBatch, ReplayItems, ItemPart, StreamGap, Dismiss, MoveAway, MoveOrder, GetOverhead),
        NEW_PARENT + NEW_SECOND,
    ),
    DetachFromParent: NEW_PARENT,
    Attach: 3 * ON_THE_WAY_MAX + NEW_SECOND,  # a new child can take the room for a place that was promised
    Widen: 3 * ON_THE_WAY_MAX,
    Reorganise: 2 * NODES,
}
"""Messages that are for many: a round, in which every node swaps some log2(nodes) times; neighbours that close a gap
ask and compare, with answers; an event goes to the nodes of its subscribers, and copies of it to two others; and who is
told of a split asks the cell above, once. In a stream: what is wanted is asked for up the tree; who gets what its
parent must not send, or is sent away by it, looks for another one; and a request to move a node has the producer look
for a better place."""
REPORTED: Final[frozenset[type[Message]]] = frozenset({CostReport})
"""What changes a report that goes up the tree: that has its sender's other children in it, too. One a second."""
STORED: Final[frozenset[type[Message]]] = frozenset({InsertSub})
"""What is kept: copies go to the nodes next to the leaf's root, the sender perhaps among them, each with its proof."""
COPY_BYTES_MAX: Final = 1024
GROWTH_BYTES_MAX: Final = 5 * NODES
"""How much larger than the message may be what others send: in a stream, what a node asks that looks for a parent."""


def _name(verb: tuple[type[Message] | None, type[Message]]) -> str:
    outer, kind = verb
    return kind.__name__ if outer is None else f"{kind.__name__} in a {outer.__name__}"


TOLD: Final = frozenset[type[Message]]({*READS, *FAN_OUT, *STORED, *REPORTED})
ALWAYS: Final = [(outer, kind) for outer, kind in verbs() if outer is None or (outer is Route and kind in TOLD)]
ONLY_LONG: Final = [verb for verb in verbs() if verb not in ALWAYS]


@pytest.mark.parametrize("verb", cases(ALWAYS, ONLY_LONG), ids=_name)
def test_no_message_makes_others_send_much_more_than_it_has(verb: tuple[type[Message] | None, type[Message]]) -> None:
    outer, kind = verb
    caused = caused_by(kind, outer)
    if outer is None and kind in READS:
        [answer] = caused.back
        assert message_type(answer[0]) is READS[kind]
        assert caused.ratio > BACK_RATIO_MAX, "it need not be among the exceptions"
    elif outer is not None or kind not in STORED:
        assert caused.ratio <= BACK_RATIO_MAX, names(caused.back)
    if Broadcast in (outer, kind):
        most = 2 * (NODES - 1) + (FAN_OUT[kind] if kind is StartRound else 0)
    else:
        most = FAN_OUT.get(kind, ON_THE_WAY_MAX)
    assert len(caused.others) <= most, names(caused.others)
    is_stored = outer is None and kind in STORED
    most_bytes = caused.request_bytes + (COPY_BYTES_MAX if is_stored else GROWTH_BYTES_MAX)
    assert not is_stored or all(frame_size(frame) <= most_bytes for frame in caused.back)
    assert kind is Leave or kind in REPORTED or all(frame_size(frame) <= most_bytes for frame in caused.others)
    assert caused.streams == 0 or kind is StartRound


def test_what_is_counted_is_because_of_the_message() -> None:
    for name in ("general", "pubsub"):
        assert background(name).total() <= NODES, "the ring is nearly silent"
    caused = caused_by(Heartbeat)
    assert not caused.back and not caused.others


def test_the_page_names_every_message_that_causes_more_than_it_has() -> None:
    text = PAGE.read_text()
    kinds: list[type[Message]] = [*TOLD, Broadcast]
    for kind in kinds:
        assert f"`{kind.__name__}`" in text

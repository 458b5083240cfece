"""What nodes know of the items that went by: bitmaps of numbers, and the summary tree of XML documents."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from hypothesis import given, strategies as st
from lxml import etree
from pyroaring import BitMap64

from peerd.errors import ProtocolError
from peerd.ids import NodeId
from protocols.dissemination.interests.errors import InterestError
from protocols.dissemination.interests.xpath.kind import XPathKind
from protocols.dissemination.messages import StreamItem
from protocols.dissemination.names import StreamPosition
from protocols.dissemination.policies.overlap.item_bits import from_bits, to_bits
from protocols.dissemination.policies.overlap.messages import BITS_BYTES_MAX, SPAN_MAX, WINDOW_MAX, ItemBits
from protocols.dissemination.policies.overlap.overlaps import RECENT_ITEMS_MAX, RecentItems
from protocols.dissemination.statistics.changes import ITEMS_MIN, since_change
from protocols.dissemination.statistics.received import ItemSet, ReceivedItems, missing_share
from protocols.dissemination.statistics.summary_tree import NOTED_BYTES_MAX, SummaryTree

A, B = NodeId(1), NodeId(2)
XPATH = XPathKind()


def item_set(numbers: set[int], since: int, watermark: int, every: int = 1, epoch: int = 1) -> ItemSet:
    return ItemSet(epoch, since, watermark, BitMap64(numbers), every)


def passed(received: ReceivedItems, numbers: range, own: int = 1, to: dict[NodeId, int] | None = None) -> None:
    """Items with these numbers: own those that ``own`` divides, and each child those that its number divides."""
    for number in numbers:
        children = [child for child, each in (to or {}).items() if number % each == 0]
        received.passed(StreamPosition(1, number), number % own == 0, children)


# Sets of items


@given(st.sets(st.integers(1, 300)), st.sets(st.integers(1, 300)), st.integers(0, 250), st.integers(0, 250))
def test_the_overhead_is_what_counting_gives(one: set[int], other: set[int], since: int, other_since: int) -> None:
    wanted, had = item_set(one, since, 300), item_set(other, other_since, 290)
    common = range(max(since, other_since) + 1, 291)
    share = missing_share(wanted.within(since, 300), had)
    assert share == pytest.approx(sum(n in one and n not in other for n in common) / len(common))


def test_sets_of_other_epochs_or_with_little_in_common_are_not_compared() -> None:
    assert missing_share(item_set({5}, 0, 100), item_set({5}, 0, 100, epoch=2)) is None
    assert missing_share(item_set({95}, 0, 100), item_set({95}, 90, 100)) is None


@given(st.sets(st.integers(1, 5000)), st.integers(0, 4000), st.integers(0, 1000), st.sampled_from([1, 2, 8]))
def test_a_set_travels_as_bits(numbers: set[int], since: int, span: int, every: int) -> None:
    sent = item_set(numbers, 0, 6000).within(since, since + span).sampled(every)
    bits = to_bits(sent)
    assert len(bits.bits) <= BITS_BYTES_MAX
    got = from_bits(bits)
    assert (got.items, got.span, got.every, got.watermark) == (sent.items, sent.span, every, sent.watermark)


def test_a_long_window_travels_as_a_sample() -> None:
    numbers = set(range(3, WINDOW_MAX, 3))
    got = from_bits(to_bits(item_set(numbers, 0, WINDOW_MAX)))
    assert got.every == 8 and got.span == WINDOW_MAX // 8
    assert set(got.items) == {number for number in numbers if number % 8 == 0}
    assert got.share == pytest.approx(1 / 3, rel=0.01)


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40), st.binary(max_size=40), st.integers(0, 8))
def test_bits_of_others_are_a_set_or_refused(since: int, watermark: int, bits: bytes, every_log2: int) -> None:
    for end in (watermark, since + len(bits) * 8 << every_log2):
        try:
            got = from_bits(ItemBits(1, since, end, bits, every_log2))
        except ProtocolError:
            continue
        assert got.watermark - got.since <= SPAN_MAX
        assert all(got.since < number <= got.watermark and number % got.every == 0 for number in got.items)


def test_bits_of_items_that_no_stream_can_have_are_refused() -> None:
    end = (1 << 64) - 1
    with pytest.raises(ProtocolError, match="above the end"):
        from_bits(ItemBits(1, end - 1, end, b"\xff", 0))


# One node


def test_a_node_knows_what_it_needs_and_for_whom() -> None:
    received = ReceivedItems(1000)
    received.passed(StreamPosition(1, 1), False, [])
    received.child_came(A)
    received.child_came(B)
    passed(received, range(2, 101), own=10, to={A: 5, B: 2})
    assert set(received.needed().items) == {n for n in range(2, 101) if not n % 5 or not n % 2}
    assert set(received.needed(without=B).items) == {n for n in range(2, 101) if not n % 5}
    sent = received.sent_to(A)
    assert sent is not None and set(sent.items) == set(range(5, 101, 5)) and sent.since == 1
    received.child_went(B)
    assert received.sent_to(B) is None
    assert received.spurious_share(50) == pytest.approx(1 - 5 / 50)


def test_only_the_window_is_remembered() -> None:
    received = ReceivedItems(100)
    received.child_came(A)
    passed(received, range(1, 1001), to={A: 1})
    assert 100 <= len(received.had) <= 100 + 100 // 8 + 1
    assert received.had.min() > received.since >= 1000 - 113
    sent = received.sent_to(A)
    assert sent is not None and sent.items == received.had


def test_a_producer_that_begins_again_is_counted_anew() -> None:
    received = ReceivedItems(100)
    passed(received, range(1, 50))
    received.passed(StreamPosition(2, 1), True, [])
    assert (received.epoch, received.since, received.watermark, list(received.had)) == (2, 0, 1, [1])


def test_a_child_brings_what_it_needed_before() -> None:
    received = ReceivedItems(1000)
    passed(received, range(1, 101))
    received.child_came(A)
    assert received.child_told(A, item_set({10, 20, 30}, 0, 100))
    assert not received.child_told(A, item_set({10, 20, 30}, 0, 100))
    passed(received, range(101, 121), to={A: 20})
    sent = received.sent_to(A)
    assert sent is not None and list(sent.items) == [10, 20, 30, 120]
    assert not received.child_told(B, item_set({10}, 0, 100))
    assert not received.child_told(A, item_set({10}, 0, 100, epoch=9))


@given(
    st.lists(st.sets(st.integers(1, 60)), min_size=1, max_size=5),
    st.sets(st.integers(1, 60)),
    st.sets(st.integers(1, 60)),
)
def test_children_that_need_the_same_share_the_cost(sent: list[set[int]], own: set[int], wanted: set[int]) -> None:
    received = ReceivedItems(1000)
    for number in range(len(sent)):
        received.child_came(NodeId(number + 1))
    for number in range(1, 61):
        children = [NodeId(at + 1) for at, each in enumerate(sent) if number in each]
        received.passed(StreamPosition(1, number), number in own, children)
    expected = sum(1 / min(5, 1 + sum(number in each for each in sent)) for number in wanted - own) / 60
    assert received.shared_cost(item_set(wanted, 0, 60)) == pytest.approx(expected)
    mine = item_set(sent[0], 0, 60)
    expected = sum(1 / min(5, sum(number in each for each in sent)) for number in sent[0] - own) / 60
    assert received.shared_cost(mine, NodeId(1)) == pytest.approx(expected)


# XML


def document(rng: random.Random, depth: int = 3) -> str:
    label, text = rng.choice("abc"), rng.choice(["", "1", "2", "t"])
    attribute = f' x="{rng.randint(0, 3)}"' if rng.random() < 0.3 else ""
    if not depth or rng.random() < 0.2:
        return f"<{label}{attribute}>{text}</{label}>"
    return f"<{label}{attribute}>{''.join(document(rng, depth - 1) for _ in range(rng.randint(1, 3)))}</{label}>"


def linear(rng: random.Random) -> str:
    return "".join("/" + rng.choice("abc") for _ in range(rng.randint(1, 4)))


def twig(rng: random.Random, depth: int = 2) -> str:
    steps = []
    for _ in range(rng.randint(1, 3)):
        step = rng.choice(["/", "//"]) + rng.choice(["a", "b", "c", "*"])
        if depth and rng.random() < 0.4:
            inner = rng.choice([linear(rng)[1:], "." + twig(rng, depth - 1), "@x", "text()", "."])
            test = rng.choice(["", '="t"', "=1", ">1", "!=2"]) if inner != "." else rng.choice(['="t"', "<2"])
            inner += test
            step += f"[not({inner})]" if rng.random() < 0.2 else f"[{inner}]"
        steps.append(step)
    return "".join(steps)


def is_pattern(query: str) -> bool:
    try:
        return bool(XPATH.parse(query).meaning.is_exact)
    except InterestError:  # it would cost too much
        return False


def summary_of(documents: list[str], **limits: int) -> SummaryTree:
    summary = SummaryTree(window=limits.pop("window", 1000), every=limits.pop("every", 1), **limits)
    for number, text in enumerate(documents, start=1):
        summary.add(StreamPosition(1, number), etree.fromstring(text))
    return summary


def wanted(summary: SummaryTree, query: str) -> set[int]:
    found = summary.wanted_by([XPATH.parse(query)])
    assert found is not None
    return set(found.items)


def counted(documents: list[str], query: str) -> set[int]:
    return {at for at, text in enumerate(documents, start=1) if etree.fromstring(text).getroottree().xpath(query)}


@given(st.integers(0, 1 << 30))
def test_paths_of_child_steps_are_answered_exactly(seed: int) -> None:
    rng = random.Random(seed)
    documents = [document(rng) for _ in range(20)]
    summary = summary_of(documents)
    for _ in range(5):
        query = linear(rng)
        assert wanted(summary, query) == counted(documents, query), query


@given(st.integers(0, 1 << 30), st.sampled_from([4096, 12]))
def test_other_queries_are_answered_with_nothing_left_out(seed: int, nodes_max: int) -> None:
    """With a limit so low that much is pruned, too."""
    rng = random.Random(seed)
    documents = [document(rng) for _ in range(20)]
    summary = summary_of(documents, nodes_max=nodes_max, window=1000)
    for _ in range(5):
        query = twig(rng)
        if is_pattern(query):
            assert wanted(summary, query) >= counted(documents, query), query


def test_a_branch_may_be_answered_with_too_much() -> None:
    """No single b has both: the bitmaps cannot tell."""
    summary = summary_of(["<a><b><c/></b><b><d/></b></a>"])
    assert wanted(summary, "/a/b[c][d]") == {1}
    assert wanted(summary, "/a/b[c][e]") == set()


def test_values_are_told_apart_as_far_as_there_are_few() -> None:
    texts = [f"<q><s>{'IBM' if at % 4 else 'MSFT'}</s><p>{at}</p></q>" for at in range(40)]
    summary = summary_of(texts)
    assert wanted(summary, '/q[s="MSFT"]') == set(range(1, 41, 4))
    assert wanted(summary, '/q[s="SUN"]') == set()
    assert wanted(summary, "/q[p=39]") >= {40}


@given(st.integers(0, 1 << 30))
def test_old_documents_are_forgotten_and_the_tree_stays_small(seed: int) -> None:
    rng = random.Random(seed)
    documents = [document(rng, 4) for _ in range(300)]
    summary = summary_of(documents, window=64, nodes_max=60, bytes_max=20_000)
    assert summary.nodes <= 60
    assert summary.bytes <= 20_000 + 60 // 8 * 400 + 9 * 60 * 2 * 2
    query = linear(rng)
    assert {n for n in wanted(summary, query) if n > 236} >= {n for n in counted(documents, query) if n > 236}
    assert all(number >= 300 - 64 - 8 for number in wanted(summary, query))


def test_documents_are_taken_in_when_somebody_asks_and_no_gap_is_passed_over() -> None:
    """Of a hundred that nobody asked about between two questions the window's are left, and what came before is not."""
    summary, begin = SummaryTree(window=32, every=1), 1
    for came, since in ((10, 0), (30, 0), (130, 98), (131, 98)):
        for number in range(begin, came + 1):
            summary.note(StreamItem.of(1, number, 0, b"<a/>" if number % 3 else b"<b/>"))
        begin = came + 1
        found = summary.wanted_by([XPATH.parse("/b")])
        assert found is not None and (found.since, found.watermark) == (since, came)
        assert set(found.items) == {number for number in range(since + 1, came + 1) if number % 3 == 0}


def test_few_bytes_of_documents_wait_until_somebody_asks() -> None:
    summary = SummaryTree(window=1000, every=1)
    for number in range(1, 9):
        summary.note(StreamItem.of(1, number, 0, b"<a>" + b" " * (NOTED_BYTES_MAX // 4) + b"</a>"))
    assert 0 < summary.noted_bytes <= NOTED_BYTES_MAX
    found = summary.wanted_by([XPATH.parse("/a")])
    assert found is not None and set(found.items) == {6, 7, 8} and not summary.noted_bytes


def test_what_is_no_pattern_is_not_answered() -> None:
    summary = summary_of(["<a/>"])
    assert not XPATH.parse("count(/a/b) > 1").meaning.is_exact
    assert summary.wanted_by([XPATH.parse("count(/a/b) > 1")]) is None
    assert SummaryTree(100).wanted_by([XPATH.parse("/a")]) is None


def test_recent_items_answer_for_any_kind() -> None:
    recent = RecentItems(XPATH)
    assert recent.wanted_by([XPATH.parse("/a")]) is None
    for number in range(1, 2 * RECENT_ITEMS_MAX + 1):
        recent.add(StreamItem.of(1, number, 0, b"<a/>" if number % 3 else b"<b/>"))
    found = recent.wanted_by([XPATH.parse("/b"), XPATH.parse("count(/b) > 0")])
    assert len(recent) == RECENT_ITEMS_MAX and found is not None
    assert (found.since, found.watermark) == (RECENT_ITEMS_MAX, 2 * RECENT_ITEMS_MAX)
    assert all(number % 3 == 0 for number in found.items) and found.share == pytest.approx(1 / 3, abs=0.01)


# Whether something has changed


def _costs(numbers: Iterable[int], watermark: int = 400) -> ItemSet:
    return ItemSet(1, 0, watermark, BitMap64(numbers))


def test_only_the_items_since_a_change_are_kept() -> None:
    """Of the first 300 items none costs anything, of the newest 100 every other one."""
    kept = since_change(_costs(range(302, 401, 2)), BitMap64())
    assert (kept.since, kept.watermark) == (300, 400) and len(kept.items) == 50


def test_what_has_become_cheaper_is_a_change_too() -> None:
    kept = since_change(_costs(range(2, 301, 2)), BitMap64())
    assert (kept.since, kept.watermark) == (300, 400) and not kept.items


def test_items_that_cost_nothing_are_kept_and_are_no_change() -> None:
    needed = range(301, 401)
    kept = since_change(_costs(needed), BitMap64(needed))
    assert kept.since == 0 and set(kept.items) == set(needed)


@given(st.integers(0, 400), st.floats(0, 1), st.randoms(use_true_random=False))
def test_what_is_kept_is_the_newest_and_enough(watermark: int, share: float, rng: random.Random) -> None:
    items = _costs((n for n in range(1, watermark + 1) if rng.random() < share), watermark)
    kept = since_change(items, BitMap64())
    assert kept.watermark == watermark and set(kept.items) == {n for n in items.items if n > kept.since}
    assert kept.since == 0 or kept.span >= ITEMS_MIN


def test_a_steady_share_is_seldom_taken_for_a_change() -> None:
    rng = random.Random(1)
    found = [since_change(_costs(n for n in range(1, 401) if rng.random() < 0.2), BitMap64()) for _ in range(200)]
    assert sum(each.since > 0 for each in found) <= 10

"""GivenAnswers that are given to other nodes: who keeps which, what members may not say, and how people read them."""

from __future__ import annotations

import json
from contextlib import aclosing
from dataclasses import replace

import pytest

import peerd.client
from peerd.cli.main import main
from peerd.errors import ProtocolError
from peerd.ids import NodeId
from peerd.testing.host import FakeHost, peer
from protocols.aggregation.answer import LINE, Answer, Failed
from protocols.aggregation.answers import GIVEN, KEPT_MAX, GivenAnswers, give, recipients
from protocols.aggregation.figures import GroupedAnswer
from protocols.aggregation.front.client import AggregationClient
from protocols.aggregation.messages import GIVEN_BYTES_MAX, GiveAnswer
from protocols.aggregation.participating import CLOCKS_APART_S
from protocols.aggregation.patterns import QueryError
from protocols.aggregation.statements import answer_statement
from tests.support.aggregation import signed
from tests.support.aggregation_member import ASKER, ROUND, SIBLING, broadcast, member, start
from tests.support.fake_aggregation import ANSWER, FakeAggregation, answer_at_once
from tests.support.fake_daemon import FakeDaemon

OF_ROUND = replace(ANSWER, round=ROUND.hex())


def given(
    answer: Answer | Failed | bytes = OF_ROUND,
    *,
    round_id: bytes = ROUND,
    requester: int = ASKER,
    at_s: float = 0.0,
    to: str = "TRUE",
    signer: int | None = None,
) -> GiveAnswer:
    """What its requester, or somebody else, says of a round."""
    text = answer if isinstance(answer, bytes) else LINE.dump_json(answer)
    said = round_id, peer(requester), round(at_s * 1000), to, text
    return GiveAnswer(*said, signed(NodeId(signer or requester), answer_statement(*said)))


def held(answers: GivenAnswers) -> list[Answer]:
    feed = answers.feed
    found = [feed.held(number) for number in range(feed.first, feed.last + 1)]
    return [GIVEN.validate_json(each).answer for each in found if each is not None]


def test_who_is_given_an_answer() -> None:
    assert (recipients("requester"), recipients("all")) == ("", "TRUE")
    assert recipients("role = web") == "role = 'web'"
    with pytest.raises(QueryError, match="requester, all, or a filter"):
        recipients("role =")
    with pytest.raises(QueryError, match="512 bytes"):
        recipients(" or ".join(f"role = {letter * 900}" for letter in "abc"))


def test_an_answer_ends_the_round_and_is_kept() -> None:
    plugin, host = member()
    broadcast(host, start(), peer(ASKER))
    broadcast(host, given(), peer(SIBLING))
    assert not plugin.participating.participants
    assert held(plugin.answers) == [OF_ROUND]
    broadcast(host, given(), peer(SIBLING))  # shown again
    assert held(plugin.answers) == [OF_ROUND]


def test_an_answer_for_others_ends_the_round_and_is_not_kept() -> None:
    plugin, host = member()
    broadcast(host, start(), peer(ASKER))
    broadcast(host, given(to="role = 'web'"), peer(ASKER))
    assert not plugin.participating.participants and not held(plugin.answers)


def test_a_node_is_meant_by_its_id_and_address() -> None:
    plugin, host = member()
    broadcast(host, given(to=f"address = '{host.peer.address}'"), peer(ASKER))
    assert held(plugin.answers) == [OF_ROUND]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (given(signer=SIBLING), "forged_answer"),
        (given(requester=SIBLING), "forged_answer"),  # signed, but it is not its round
        (replace(OF_ROUND, contributors=9), "forged_answer"),
        (given(at_s=CLOCKS_APART_S + 1), "old_answer"),
        (given(b"{"), "bad_answer"),
        (given(b"[" * 10_000), "bad_answer"),
        (given(Failed("no")), "bad_answer"),
        (given(ANSWER), "bad_answer"),  # of another round
        (given(to="role ="), "bad_answer"),
    ],
)
def test_what_is_said_wrongly_is_refused(said: GiveAnswer | Answer, reason: str) -> None:
    plugin, host = member()
    broadcast(host, start(), peer(ASKER))
    if isinstance(said, Answer):  # changed on the way
        true = given()
        said = GiveAnswer(true.round_id, true.requester, true.answered_at_ms, true.to, LINE.dump_json(said), true.proof)
    with pytest.raises(ProtocolError, match=reason):
        broadcast(host, said, peer(SIBLING))
    assert not held(plugin.answers)
    assert (ROUND in plugin.participating.participants) == (reason == "forged_answer")


def test_it_is_told_by_broadcast_only() -> None:
    """Who sends it to one node is told that this knows no such message."""
    plugin, _ = member()
    assert GiveAnswer not in plugin.handlers.messages


def test_readers_are_let_go_when_the_plugin_is_replaced() -> None:
    plugin, host = member()
    broadcast(host, given(), peer(ASKER))
    for callback in host.over:
        callback("plugin restarted")
    assert plugin.answers.feed.ended is not None
    broadcast(host, given(replace(ANSWER, round=bytes(16).hex()), round_id=bytes(16)), peer(ASKER))
    assert len(held(plugin.answers)) == 1


def test_the_newest_are_held() -> None:
    answers = GivenAnswers(FakeHost(1))
    for number in range(KEPT_MAX + 5):
        round_id = number.to_bytes(len(ROUND), "big")
        answers.take(given(replace(ANSWER, round=round_id.hex(), contributors=number), round_id=round_id))
    assert [answer.contributors for answer in held(answers)] == list(range(5, KEPT_MAX + 5))


def test_an_answer_goes_without_lists_of_nodes_and_not_when_it_is_too_large() -> None:
    host = FakeHost(ASKER)
    told, message = give(host, ROUND, OF_ROUND, "TRUE")
    assert message is not None and told == replace(OF_ROUND, given_to="TRUE") and not told.warnings
    answer = LINE.validate_json(message.answer)
    assert isinstance(answer, Answer) and (answer.missing, answer.missing_count) == ((), 1)
    assert answer.value == OF_ROUND.value and answer.outcome == OF_ROUND.outcome
    groups = {f"group {number}": number for number in range(2000)}
    large = replace(OF_ROUND, value=GroupedAnswer(groups, len(groups), 0, None))
    told, message = give(host, ROUND, large, "TRUE")
    assert message is None and f"{GIVEN_BYTES_MAX:,} may be given" in told.warnings[-1]


# How people ask for them and read them


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> FakeAggregation:
    """That of the daemon that every client asks; it was given one answer."""
    fake = FakeAggregation()
    fake.answers = GivenAnswers(FakeHost(1))
    fake.answers.take(given())
    fake.fake.on_call = answer_at_once
    daemon = FakeDaemon({"aggregation": fake})
    make = daemon.client
    monkeypatch.setattr(peerd.client, "Client", lambda address: make())
    monkeypatch.setattr("protocols.aggregation.front.commands.Client", lambda address: make())
    return fake


def test_the_command_says_who_is_given_the_answer(plugin: FakeAggregation, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["aggregate", "count", "--to", "role = web", "--require", "0"]) == 0
    assert [call.listener.to for call in plugin.fake.calls] == ["role = 'web'"]
    assert main(["aggregate", "count", "--to", "role ="]) != 0
    assert "a filter on the tags of nodes" in capsys.readouterr().err


def test_answers_are_shown(plugin: FakeAggregation, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["answers", "--no-follow"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("--- 1970-01-01T00:00:00.000+00:00 ") and out[0].endswith(": count by word")
    assert [line.split() for line in out[1:5]] == [["group", "value"], ["a", "3"], ["b", "2"], ["c", "1"]]
    assert main(["answers", "--no-follow", "-o", "jsonl"]) == 0
    [item] = [line for line in map(json.loads, capsys.readouterr().out.splitlines()) if line["type"] == "item"]
    assert item["data"]["answer"]["query"] == "count by word"
    assert main(["answers", "--no-follow", "-o", "csv"]) == 0
    assert "count by word" in capsys.readouterr().out


async def test_a_client_reads_them(plugin: FakeAggregation) -> None:
    async with (
        FakeDaemon({"aggregation": plugin}).client() as client,
        aclosing(AggregationClient(client).answers(follow=False)) as entries,
    ):
        first, _ = [entry async for entry in entries]
    assert first.type == "item" and first.data["answer"]["round"] == ROUND.hex()

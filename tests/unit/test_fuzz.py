"""A small share of ``make fuzz`` in every run of the tests, more of it in the long ones; and does it see anything?"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from random import Random

import msgpack
import pytest

from peerd.errors import ProtocolError
from protocols.dissemination.interests.xpath import automaton
from tests.fuzz import mutate, xpath_verdicts
from tests.fuzz.members import episode
from tests.fuzz.target import CASE_BYTES, CASE_S_MAX, Target, allowed_s, case_random, run_cases
from tests.fuzz.targets import all_targets, shares

SEED = 1
CASES = 12_000
CASES_LONG = 600_000
SAID = 240
VERDICTS = 8_000
VERDICTS_LONG = 1_000_000


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> list[Target]:
    return all_targets(tmp_path_factory.mktemp("fuzz"))


@pytest.fixture
def no_collection() -> Iterator[None]:
    """A pass of Python's collector is nobody's case."""
    gc.disable()
    yield
    gc.enable()


def fuzz(targets: list[Target], cases: int, seed: int) -> list[str]:
    return [
        str(finding)
        for target, count in shares(targets, cases).items()
        for finding in run_cases(target, seed, range(count))
    ]


@pytest.mark.filterwarnings("ignore:Parsed a")  # serial numbers that are negative, in certificates that are damaged
def test_damaged_encodings_raise_what_the_decoder_promises(targets: list[Target], no_collection: None) -> None:
    assert fuzz(targets, CASES, SEED) == []


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Parsed a")
def test_many_damaged_encodings_raise_what_the_decoder_promises(targets: list[Target]) -> None:
    assert fuzz(targets, CASES_LONG, SEED + 1) == []


@pytest.mark.parametrize("seed", range(3))
def test_whatever_a_member_says_no_handler_fails(seed: int) -> None:
    assert episode(seed, SAID) is None


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10, 40))
def test_however_much_a_member_says_no_handler_fails(seed: int) -> None:
    assert episode(seed, 10 * SAID) is None


def test_xpath_verdicts_are_lxmls(no_collection: None) -> None:
    outcome = xpath_verdicts.run(VERDICTS, SEED)
    assert outcome.findings == []
    assert outcome.queries > VERDICTS // 60 and outcome.met > VERDICTS // 40


@pytest.mark.long
def test_many_xpath_verdicts_are_lxmls() -> None:
    assert xpath_verdicts.run(VERDICTS_LONG, SEED + 1).findings == []


@pytest.mark.parametrize("defect", ["raises", "differs"])
def test_a_verdict_that_is_not_lxmls_is_found(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when an attribute's text() was looked for among tests that nobody had asked for."""

    def values_of_text(self: object, text: str) -> int:
        if defect == "raises":
            raise KeyError("Of.NODE")
        return 0

    monkeypatch.setattr(automaton._Label, "values_of_text", values_of_text)
    found = xpath_verdicts.run(VERDICTS, SEED).findings
    assert found and ("KeyError" in found[0]) == (defect == "raises")


def test_every_decoder_has_a_name_of_its_own_and_a_share(targets: list[Target]) -> None:
    assert len({target.name for target in targets}) == len(targets)
    assert min(shares(targets, 10).values()) == 1
    assert abs(sum(shares(targets, 1_000_000).values()) - 1_000_000) < len(targets)


def test_a_case_is_the_same_each_time_and_alone(targets: list[Target]) -> None:
    for target in targets:
        if target.name not in ("certificate", "notices of the CA"):  # their CA is a new one each time
            first, again = (target.make(case_random(SEED, target, 77)) for _ in range(2))
            assert repr(first) == repr(again), target.name


def test_what_a_decoder_should_not_raise_is_found() -> None:
    """A decoder as one was before: it trusts that a map's keys can be compared with a column of texts."""

    def decode(body: bytes) -> None:
        try:
            values = msgpack.unpackb(body)
        except (ValueError, msgpack.exceptions.UnpackException) as error:
            raise ProtocolError("malformed", str(error)) from error
        sorted(values)

    target = Target("naive", lambda rng: mutate.packed(rng, msgpack.packb([1, 2, 3])), decode, (ProtocolError,))
    assert any("TypeError" in finding.what for finding in run_cases(target, SEED, range(200)))


def test_a_case_that_takes_long_is_found() -> None:
    def slow(cost_s: float) -> None:
        begun = time.thread_time()
        while time.thread_time() < begun + cost_s:
            pass

    target = Target("slow", lambda rng: 1.5 * CASE_S_MAX, slow, ())
    [finding] = run_cases(target, SEED, range(1))
    assert "ms of processor time" in finding.what


def test_a_case_that_is_longer_than_what_others_can_send_may_take_longer_in_proportion() -> None:
    assert allowed_s(b"") == allowed_s(bytes(CASE_BYTES)) == allowed_s(("name", "x" * 1000)) == CASE_S_MAX
    assert allowed_s(("name", bytes(2 * CASE_BYTES - 4))) == allowed_s("x" * 2 * CASE_BYTES) == 2 * CASE_S_MAX


@pytest.mark.parametrize("document", [b"\x93\x01\xa1a\x90", b"\xc1", b""])
def test_what_is_no_message_is_damaged_blindly(document: bytes) -> None:
    assert any(mutate.packed(Random(seed), document) != document for seed in range(20))

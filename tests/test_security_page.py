"""docs/security.md names tests that exist, and limits as they are."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from peerd import limits
from peerd.config import PeerdConfig
from peerd.linking import allowed_hosts, dial_limits
from peerd.swap import session
from tests.test_tidy import ROOT

PAGE = (ROOT / "docs" / "security.md").read_text("utf-8")
TEST = re.compile(r"`(test_\w+)`")
FILE = re.compile(r"tests/[\w/]+\.py")
NAMES = {"half": 0.5}
ATTACKS = 28
"""Attacks that have a name, A01 and on."""


def claims() -> Iterator[tuple[str, str]]:
    """Each test that is named, and the file that follows it."""
    for sentence in re.split(r"\n\n|\|\n", PAGE):
        for match in TEST.finditer(sentence):
            file = FILE.search(sentence, match.end())
            assert file is not None, f"{match[1]} is named without its file"
            yield match[1], file[0]


@pytest.mark.parametrize(("name", "file"), sorted(set(claims())))
def test_each_named_test_is_in_its_file(name: str, file: str) -> None:
    assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text("utf-8"), re.MULTILINE)


def test_every_named_attack_has_its_line() -> None:
    attacks = re.findall(r"^\| (A\d\d) ", PAGE, re.MULTILINE)
    assert attacks == [f"A{number:02}" for number in range(1, ATTACKS + 1)]


def test_every_script_of_an_attack_is_on_the_page() -> None:
    named = {name for name, _ in claims()}
    for file in sorted((ROOT / "tests" / "hostile").glob("test_*.py")):
        scripts = re.findall(r"^async def (test_\w+)\(", file.read_text("utf-8"), re.MULTILINE)
        assert not set(scripts) - named, f"{file.name} has scripts that docs/security.md does not name"


def rows() -> Iterator[tuple[str, float]]:
    """Each limit and the default that the page gives."""
    table = PAGE.partition("| limit |")[2].partition("\n\n")[0]
    for line in table.splitlines()[2:]:
        names, values = [cell.strip() for cell in line.strip("| ").split("|")][:2]
        for name, value in zip(names.split(", "), values.split(", "), strict=True):
            if value != "empty":
                yield name.strip("`"), NAMES.get(value) or float(value.removesuffix(" s"))


@pytest.mark.parametrize(("name", "value"), list(rows()))
def test_each_limit_is_as_the_page_says(name: str, value: float) -> None:
    if name.startswith("limits."):
        assert getattr(PeerdConfig().limits, name.removeprefix("limits.")) == value
    else:
        assert {**vars(limits), **vars(session), **vars(dial_limits), **vars(allowed_hosts)}[name] == value

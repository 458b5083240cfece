"""A protocol is one folder, and nothing outside names it."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Sequence

import pytest

from tests.test_tidy import ROOT, Source, code, report


def named(source: Source, protocols: Sequence[str]) -> Iterator[str]:
    """Yield the places where source says a protocol's name: in an identifier, or in a text that is a name, key or path.

    Prose (docstrings, comments, help texts) may use the word: "dissemination" is one.
    """
    any_of = "|".join(protocols)
    identifier = re.compile(any_of, re.IGNORECASE)
    key = re.compile(rf"(?:^|[./])(?:{any_of})(?:$|[./])", re.IGNORECASE)
    if not identifier.search(source.text):
        return
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type == tokenize.NAME and identifier.search(token.string):
            yield f"{source.path}:{token.start[0]}: {token.string} names a protocol"
    for node in source.nodes(ast.Constant):
        if isinstance(node.value, str):
            parts = node.value.split()
            for part in parts:
                is_prose = len(parts) > 1 and not re.search(r"\w[./]\w", part)
                if key.search(part) and not is_prose:
                    yield f"{source.path}:{node.lineno}: {part!r} names a protocol"


def test_nothing_in_peerd_names_a_protocol() -> None:
    protocols = [path.parent.name for path in (ROOT / "protocols").glob("*/plugin.py")]
    assert protocols, "there is no protocol: nothing was checked"
    sources = [source for source in code() if source.path.startswith("peerd/")]
    offences = [offence for source in sources for offence in named(source, protocols)]
    assert not offences, report(offences)


@pytest.mark.parametrize(
    "text", ["class PubsubEvent: ...", "key = 'protocols.pubsub.topic'", "name = 'pubsub'", "kind = f'pubsub.{what}'"]
)
def test_check_bites(text: str) -> None:
    assert len(list(named(Source("peerd/client/__init__.py", text), ["pubsub"]))) == 1


def test_prose_may_use_the_word() -> None:
    text = '"""About dissemination and more."""\nhelp = "data dissemination, and aggregation"\n'
    assert list(named(Source("peerd/client/__init__.py", text), ["dissemination", "pubsub"])) == []

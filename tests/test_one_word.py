"""One word, one thing: no public class of peerd and protocols has a name that another class has, too.

Whoever reads a name in an error, in a page or in a search has to find one thing. Two classes with the same name also
meet in imports, and then one of them gets a third name.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Set as AbstractSet
from typing import Final

from tests.test_tidy import Source, code, report

ALLOWED: Final[dict[str, str]] = {}
"""Names that two classes may have, each with the reason."""


def offences(sources: Iterable[Source], allowed: AbstractSet[str]) -> list[str]:
    """Return each public class whose name another one has, and names that need no permission."""
    places: dict[str, list[str]] = defaultdict(list)
    for source in sources:
        if source.path.startswith(("peerd/", "protocols/")):
            for node in source.tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(f"{source.path}:{node.lineno}")
    twice = {name: where for name, where in places.items() if len(where) > 1}
    found = [
        f"{place}: another class {name} is at {where[0]}; give one of them a name that says what it is"
        for name, where in sorted(twice.items())
        if name not in allowed
        for place in where[1:]
    ]
    return found + [
        f"{name} is not defined twice (any more): take it out of ALLOWED" for name in sorted(allowed - twice.keys())
    ]


def test_no_public_class_has_the_name_of_another() -> None:
    found = offences(code(), ALLOWED.keys())
    assert not found, report(found)


def test_the_check_bites() -> None:
    one, other = (
        Source("peerd/a.py", "class Window:\n    pass\n"),
        Source("protocols/x/b.py", "class Window:\n    pass\n"),
    )
    assert offences([one, other], set()) == [
        "protocols/x/b.py:1: another class Window is at peerd/a.py:1; give one of them a name that says what it is"
    ]
    assert offences([one, other], {"Window"}) == []
    assert offences([one], {"Window"}) == ["Window is not defined twice (any more): take it out of ALLOWED"]
    private = [Source("peerd/a.py", "class _One:\n    pass\n"), Source("peerd/b.py", "class _One:\n    pass\n")]
    tests = [Source("tests/a.py", "class Two:\n    pass\n"), Source("tests/b.py", "class Two:\n    pass\n")]
    assert offences([*private, *tests], set()) == []

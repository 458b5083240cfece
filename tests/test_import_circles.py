"""No modules of ours import each other in a circle: each can be read, and tested, after those that it builds on."""

from __future__ import annotations

from collections.abc import Iterable

from tests.test_tidy import TYPES_ONLY, Source, code, imports, report, type_checking_lines

CIRCLES_LEFT: tuple[frozenset[str], ...] = ()


def module_graph(sources: Iterable[Source]) -> dict[str, set[str]]:
    """Who imports whom among these modules, also within functions, and for type checkers only.

    Types alone do not count for `TYPES_ONLY`, which names what plugins' fronts are made of, from any layer.
    """
    sources = list(sources)
    modules = {source.module for source in sources}
    graph: dict[str, set[str]] = {module: set() for module in modules}
    for source in sources:
        uncounted = type_checking_lines(source) if source.path == TYPES_ONLY else set()
        for line, imported in imports(source):
            name = imported
            while name and name not in modules:
                name = name.rpartition(".")[0]
            if name and line not in uncounted:
                graph[source.module].add(name)
    return graph


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The sets of modules that all reach each other, and modules that import themselves (Tarjan 1972)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        path.append(module)
        for other in sorted(graph[module]):
            if other not in order:
                visit(other)
            if other in path:
                lowest[module] = min(lowest[module], lowest[other])
        if lowest[module] == order[module]:
            place = path.index(module)
            members = path[place:]
            del path[place:]
            if len(members) > 1 or module in graph[module]:
                found.append(sorted(members))

    for module in sorted(graph):
        if module not in order:
            visit(module)
    return sorted(found)


def test_no_modules_import_each_other_in_a_circle() -> None:
    ours = [source for source in code() if source.path.startswith(("peerd/", "protocols/"))]
    offences = [
        f"{', '.join(circle)}: import each other; move what they share into a module below them"
        for circle in circles(module_graph(ours))
        if not any(known.issuperset(circle) for known in CIRCLES_LEFT)
    ]
    assert not offences, report(offences)


def test_circles_are_found() -> None:
    sources = [
        Source("peerd/a.py", "from peerd.b import thing\nimport json"),
        Source("peerd/b/__init__.py", "def late():\n    from peerd.b.c import other"),
        Source("peerd/b/c.py", "if TYPE_CHECKING:\n    from peerd.a import Thing\nfrom peerd import d"),
        Source("peerd/d.py", "import peerd.e"),
        Source("peerd/e.py", "from peerd.e import itself"),
        Source("peerd/front.py", "import peerd.g\nif TYPE_CHECKING:\n    from peerd.f import Piece"),
        Source("peerd/f.py", "import peerd.front"),
        Source("peerd/g.py", "import json"),
    ]
    assert circles(module_graph(sources)) == [["peerd.a", "peerd.b", "peerd.b.c"], ["peerd.e"]]
    sources[-1] = Source("peerd/g.py", "import peerd.f")
    assert ["peerd.f", "peerd.front", "peerd.g"] in circles(module_graph(sources))

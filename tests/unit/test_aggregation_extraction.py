"""Extraction equals the plain computation, and meets bad files without failing."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Mapping
from functools import reduce
from io import BytesIO, StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from peerd.errors import Unavailable
from peerd.ids import NodeId
from protocols.aggregation import extraction, registry
from protocols.aggregation.config import FileSelection, Share
from protocols.aggregation.exchange import EXTRACTION_MODULES
from protocols.aggregation.extraction import extract
from protocols.aggregation.figures import Estimate, Figures, GroupedAnswer, HistogramFigure, Listing
from protocols.aggregation.functions import Maximum
from protocols.aggregation.groups import Grouped
from protocols.aggregation.numbers import Number
from protocols.aggregation.partial import Partial, merge
from protocols.aggregation.query import Query, parse_query
from protocols.aggregation.reference import plain, selected_files
from tests.support.examples import examples

Answer = Any
WORDS = r"(?P<word>[a-z]+)(?:=(?P<x>[0-9.]+))?"


def answer(query: Query, root: Path, selections: list[FileSelection]) -> Answer:
    """What the nodes together answer: each extracts, the partials are merged over the wire."""
    partials = []
    for index, selection in enumerate(selections):
        found = extract(query, root, selection)
        partial = Partial.of(query, NodeId(index), found.value, found.report)
        partials.append(Partial.decode(partial.encode(), query))
    result = reduce(merge, partials).finish()
    return result.groups if isinstance(result, GroupedAnswer) else result


def is_same(merged: Any, expected: Any) -> bool:
    """Whether a figure is the exact one, or as near as it says."""
    if isinstance(merged, Figures):
        merged = merged.figures
    if isinstance(merged, Mapping):
        return set(merged) == set(expected) and all(is_same(merged[key], expected[key]) for key in merged)
    if isinstance(merged, Estimate):
        slack = 1e-9 * abs(expected)
        return bool(merged.low - slack <= expected <= merged.high + slack)
    if isinstance(merged, HistogramFigure | Listing):
        return bool(list(merged.counts if isinstance(merged, HistogramFigure) else merged.values) == expected)
    return bool(merged == expected)


def write(root: Path, files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats()
    | st.sampled_from(["a", "b", "", "7", "é", "1.5"])
    | st.text(max_size=4)
)
records = st.dictionaries(
    st.sampled_from(["x", "k", "s", "o"]),
    scalars | st.just({"x": 1}) | st.lists(st.sampled_from([0, 1, 0.5, 10**20, -(2**70), "7"]), max_size=3),
    max_size=5,
)
json_lines = st.lists(records.map(json.dumps) | st.sampled_from(["", "{", "[1]", "7", "\ufeff{}"]), max_size=8)
rows = st.lists(
    st.lists(st.sampled_from(["a", "1", "-2.5", "x y", "", 'q"', "n\nl", "1e3", "nan"]), max_size=3), max_size=8
)
texts = st.text("abc=1.\n\r é", max_size=60)
names = st.sampled_from(["a.log", "b.log", "d/a.log", "d/e/f.log", ".hidden", "d/x.txt"])
queries = st.sampled_from(
    [
        "count",
        "count by k",
        "count by o.x",
        "sum(x)",
        "sum(x) by k",
        "min(x) by k",
        "max(x)",
        "mean(x) by k where x >= 0",
        "mean(x) where k != 7",
        "count by k where x < 1.5 and k = a",
        'count where k = "7"',
        'count where k > "a"',
        "count where k in (a, b) or x between 0 and 5",
        "count where not (x < 1 or k like '%a%') and k is not null",
        "variance(x), count by k",
        "stddev(x), median(x), p99(x), quantile(x, 0.25) by k",
        "distinct(k), values(k, 2), values(k) where x > -5",
        "histogram(x, -1, 0, 1.5), top(x, 2), bottom(x), sum(x)",
        "vector(k), count",
        "count, mean(x) by k, o.x",
        "count, max(x) by @file",
        "sum(x) by k where k starts with a or k ends with 7 or not k = true",
        "count where x not in (7, 1.5) and k is null",
    ]
)
globs = st.sampled_from(["**/*", "*.log", "**/*.log", "d/**/*", "d/**", "[ab].log", "*/?.log", "**/e/*"])


def csv_text(table: list[list[str]]) -> str:
    buffer = StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([["x", "k", "o.x"], *table])
    return buffer.getvalue()


@settings(max_examples=examples(150), deadline=None)
@given(
    st.one_of(
        st.tuples(st.just("ndjson"), st.dictionaries(names, json_lines.map("\n".join), max_size=4)),
        st.tuples(st.just("csv"), st.dictionaries(names, rows.map(csv_text), max_size=4)),
        st.tuples(st.just("text"), st.dictionaries(names, texts, max_size=4)),
    ),
    queries,
    globs,
    st.integers(1, 3),
)
def test_equals_the_plain_computation(tree: tuple[Any, Any], text: str, glob: str, parts: int) -> None:
    format_, files = tree
    pattern = None
    if format_ == "text":
        text, pattern = text.replace("o.x", "x"), WORDS.replace("word", "k")
    query = parse_query(text, files=glob, format=format_, pattern=pattern)
    selections = [FileSelection(Share(index, parts)) for index in range(parts)]
    with TemporaryDirectory() as folder:
        root = Path(folder)
        write(root, files)
        merged, expected = answer(query, root, selections), plain(query, root, selections)
        assert is_same(merged, expected)
        assert expected == plain(query, root, [FileSelection()])
        assert extract(query, root).report.files_read == len(selected_files(query, root, [FileSelection()]))


def test_records_know_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.node", lambda: "web-1")
    write(tmp_path, {"a.log": '{"x": 1}\n{"x": 2}', "d/b.log": '{"x": 5, "@file": "not this"}\n{'})
    query = parse_query("count, sum(x) by @file, @host, @node")
    assert extract(query, tmp_path, node="00aa").value.groups == {
        '["a.log","web-1","00aa"]': (2, (3, -1)),
        '["d/b.log","web-1","00aa"]': (1, (5, -1)),
    }
    selected = extract(parse_query("values(@node) where \"@file\" like 'd/%'"), tmp_path, node="00aa")
    assert (selected.value, selected.report.records_selected) == ((False, ("00aa",)), 1)
    words = parse_query("count by @file", pattern="(?P<digit>[0-9])")
    assert extract(words, tmp_path).value.groups == {"a.log": 2, "d/b.log": 1}


def test_records_know_the_tags_of_their_node(tmp_path: Path) -> None:
    write(tmp_path, {"a": '{"x": 1, "@tag": {"role": "db"}, "@tag.role": "db"}\n{"x": 2}'})
    web = {"role": "web", "rack": "3"}
    assert extract(parse_query("sum(x) by @tag.role, @tag.rack"), tmp_path, tags=web).value.groups == {
        '["web","3"]': (3, -1)
    }
    query = parse_query('count where "@tag.role" = web')
    assert extract(query, tmp_path, tags=web).value == 2
    for other in ({"role": "db"}, {}):
        assert extract(query, tmp_path, tags=other).value == 0
    lacking = extract(parse_query("count by @tag.role"), tmp_path)
    assert (lacking.value.groups, lacking.report.records_rejected) == ({}, 2)
    words = parse_query("count by @tag.rack", pattern="(?P<digit>[0-9])")
    assert extract(words, tmp_path, tags=web).value.groups == {"3": 2}


def test_groups_beyond_the_cap_are_folded_while_records_are_read(tmp_path: Path) -> None:
    lines = [json.dumps({"k": f"group {number % 40}", "x": number}) for number in range(400)]
    write(tmp_path, {"a": "\n".join(lines)})
    text = "count, distinct(x), values(x, 500), median(x), histogram(x, 100), top(x), stddev(x)"
    query = parse_query(f"{text} by k", groups_max=3)
    value = extract(query, tmp_path).value
    assert len(value.groups) == 3 and value.remainder.groups >= 37
    total = Grouped(query.function, 3).total(value)
    assert total == extract(parse_query(text), tmp_path).value, "nothing is lost, whatever was folded when"
    partial = Partial.of(query, NodeId(1), value, extract(query, tmp_path).report)
    assert Partial.decode(partial.encode(), query) == partial


def test_every_match_counts(tmp_path: Path) -> None:
    write(tmp_path, {"a": "the cat the dog\nthe end", "b/c": "cat"})
    query = parse_query("count by word", pattern=r"(?P<word>\w+)")
    found = extract(query, tmp_path)
    assert found.value.groups == {"the": 3, "cat": 2, "dog": 1, "end": 1}
    report = found.report
    assert (report.files_read, report.records, report.records_selected, report.bytes_read) == (2, 7, 7, 26)


def test_shares_divide_the_files() -> None:
    paths = [f"lib/{index}.py" for index in range(800)]
    owners = [[index for index in range(8) if Share(index, 8).owns(path)] for path in paths]
    assert all(len(owner) == 1 for owner in owners)
    assert all(60 < sum(owner == [index] for owner in owners) < 140 for index in range(8))
    assert Share.parse("3/8") == Share(3, 8)
    assert Share(0, 3).owns("a/b.py") is False
    for text in ("8/8", "0/0", "-1/2", "1", "1/2/3", "a/b"):
        with pytest.raises(ValueError, match="a share is k/n"):
            Share.parse(text)


def test_bad_files_are_counted_not_fatal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside = tmp_path / "outside"
    root = tmp_path / "root"
    write(outside, {"secret": '{"x": 1}\n'})
    write(
        root,
        {"good": '{"x": 1}\nnot json\n{"y": 2}\n{"x": NaN}\n{"x": "3"}\n{"x": 4}', "bin": b"\x7fELF\0\0", "no": ""},
    )
    (root / "link_in").symlink_to(root / "good")
    (root / "link_out").symlink_to(outside / "secret")
    (root / "link_folder").symlink_to(outside)
    (root / "loop").symlink_to(root / "loop")
    unreadable, real_open = root.resolve() / "no", Path.open

    def failing_open(path: Path, *arguments: Any, **options: Any) -> Any:
        if path == unreadable:
            raise PermissionError(13, "Permission denied")
        return real_open(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", failing_open)
    found = extract(parse_query("sum(x)"), root)
    report = found.report
    assert found.value == (10, -1)
    assert (report.files_read, report.files_binary, report.files_unreadable, report.files_skipped) == (2, 1, 1, 3)
    assert (report.records, report.records_selected, report.records_rejected) == (12, 4, 8)
    assert report.notes[0] == "bin: binary"
    assert "no: Permission denied" in report.notes
    assert plain(parse_query("sum(x)"), root, [FileSelection()]) == 10


def test_unreadable_folders_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"a": '{"x": 1}', "closed/b": '{"x": 1}'})
    closed, real_iterdir = tmp_path.resolve() / "closed", Path.iterdir

    def failing_iterdir(path: Path) -> Any:
        if path == closed:
            raise PermissionError(13, "Permission denied")
        return real_iterdir(path)

    monkeypatch.setattr(Path, "iterdir", failing_iterdir)
    report = extract(parse_query("count"), tmp_path).report
    assert (report.files_read, report.folders_unreadable) == (1, 1)
    assert report.notes == ("closed/: Permission denied",)


def test_long_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"t": "a" * 70_000 + "b\nb\n"})
    found = extract(parse_query("count by w", pattern="(?P<w>b|aa)"), tmp_path)
    assert found.value.groups == {"aa": 32_768, "b": 1}
    assert found.report.lines_truncated == 1
    assert found.report.bytes_read == 70_004
    monkeypatch.setattr(extraction, "LINE_BYTES_MAX", 20)
    monkeypatch.setattr(extraction, "BLOCK_BYTES", 20)
    write(tmp_path, {"t": 'x\n1\n"22222222222222222222222"\n3\n'})
    found = extract(parse_query("sum(x)", format="csv"), tmp_path)
    assert (found.value, found.report.records, found.report.records_rejected) == ((4, -1), 3, 1)
    write(tmp_path, {"t": '{"x": 1}\r\n{"x": 2, "y": "aaaaaaaaaaaa"}\n{"x": 12345678901234}\n'})
    found = extract(parse_query("count"), tmp_path)
    assert (found.value, found.report.records_rejected, found.report.lines_truncated) == (1, 2, 2)


@given(
    data=st.lists(st.sampled_from([b"\n", b"\r\n", b"\r", b"abc", b"0123456789"])).map(b"".join),
    block_bytes=st.integers(1, 20),
    grown=st.integers(0, 8),
)
def test_blocks_are_whole_lines(data: bytes, block_bytes: int, grown: int) -> None:
    """However a file is cut into blocks, its lines are the same, and the last one is read whole if it has grown."""
    size = max(0, len(data) - grown)
    expected, position = [], 0
    for line in data.split(b"\n"):
        if position < size and (line or position < len(data)):
            expected.append(None if len(line.removesuffix(b"\r")) > 20 else line)
        position += len(line) + 1
    tally = extraction._Tally()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extraction, "LINE_BYTES_MAX", 20)
        patch.setattr(extraction, "BLOCK_BYTES", block_bytes)
        blocks = list(extraction._blocks(BytesIO(data), size, tally))
    assert all(block is None or block.endswith(b"\n") for block in blocks)
    found = [line for block in blocks for line in ([None] if block is None else block.split(b"\n")[:-1])]
    assert found == expected
    assert tally.lines_truncated == expected.count(None)


WORKER = """
import importlib, sys
from pathlib import Path
for name in ("peerd.system.work_server", "protocols.aggregation.exchange", *sys.argv[2:]):
    importlib.import_module(name)
from protocols.aggregation.config import FileSelection
from protocols.aggregation.exchange import FileExtractor, extract_own
from protocols.aggregation.patterns import RegexEngine
from protocols.aggregation.query import Query

query = Query.from_wire(sys.stdin.buffer.read())
before = set(sys.modules)
extract_own(FileExtractor(Path(sys.argv[1]), FileSelection(), RegexEngine.RE2), query, 1)
print(*sorted(set(sys.modules) - before))
"""


@pytest.mark.parametrize("text", ["count", "sum(x) by k where k != a", "p99(x), distinct(k)"])
def test_a_worker_finds_all_that_it_needs_imported(text: str, tmp_path: Path) -> None:
    """Each process paid for its imports anew: a third of a second, in every round."""
    write(tmp_path, {"a.ndjson": '{"x": 1, "k": "b"}\n', "b.csv": "x,k\n1,b\n"})
    for files in ("*.ndjson", "*.csv"):
        query = parse_query(text, files=files).to_wire()
        command = [sys.executable, "-c", WORKER, str(tmp_path), *EXTRACTION_MODULES]
        assert subprocess.run(command, input=query, capture_output=True, check=True).stdout.split() == []


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def _row(line: bytes, names: tuple[str, ...]) -> list[object] | None:
    try:
        record = json.loads(line.decode())
    except ValueError:
        return None
    return [extraction._member(record, name) for name in names] if isinstance(record, dict) else None


objects = st.dictionaries(st.sampled_from(["a", "b", "a.b", "c", ""]), json_values, max_size=4)


@settings(max_examples=examples(400))
@given(
    values=st.lists(objects | json_values, min_size=1, max_size=3),
    names=st.lists(st.sampled_from(["a", "b", "a.b", "a.b.c", ""]), max_size=3).map(tuple),
    change=st.none() | st.tuples(st.integers(0, 60), st.sampled_from(b'{}[]",:0e.-+\\N\t\x01 ')),
)
def test_a_line_is_what_json_says(values: list[object], names: tuple[str, ...], change: tuple[int, int] | None) -> None:
    """Whichever of the two decoders reads it, and with whatever other lines: with every digit, or as none at all."""
    first, *others = (json.dumps(value).encode() for value in values)
    if change is not None:
        place, byte = change
        first = first[:place] + bytes((byte,)) + first[place + 1 :]
    lines = [first, *others]
    rows = extraction._json_rows(names, iter([b"".join(line + b"\n" for line in lines)]))
    expected = [_row(line, names) for line in lines if line and not line.isspace()]
    assert repr([row if row is None else list(row) for row in rows]) == repr(expected)


def test_two_objects_in_a_line_are_no_record_and_what_a_query_does_not_read_cannot_spoil_one(tmp_path: Path) -> None:
    """Wherever in the file it is: alone, or among lines that are as they should be."""
    odd = [b'{"k": 1} {"k": 2}', b"", b'{"k": 3, "other": "\xff"}', b'{"k": "\xff"}', b'{"k": 4, "other": 1e999}']
    good = b'{"k": 5}\n'
    for name, line in enumerate(odd):
        (tmp_path / f"{name}-alone").write_bytes(line + b"\n")
        (tmp_path / f"{name}-among").write_bytes(good + line + b"\n" + good)
    found = extract(parse_query("count by k"), tmp_path)
    assert found.value.groups == {"3": 2, "4": 2, "5": 10}
    assert (found.report.records, found.report.records_rejected) == (18, 4)


@pytest.mark.parametrize("text", ["conflict(x)", "conflict(x) by k"])
def test_a_state_may_be_none(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function of another package may have a state of that kind which says something."""

    class Conflict(Maximum):
        """The one number of all records; nothing when there are two different ones."""

        name: Any = "conflict"
        zero: Any = -1

        def lift(self, value: Number) -> Any:
            return value

        def merge(self, a: Any, b: Any) -> Any:
            if a == -1 or b == -1:
                return b if a == -1 else a
            return a if a == b else None

    monkeypatch.setattr(registry, "kind_named", lambda name: Conflict)
    registry.function_of.cache_clear()
    write(tmp_path, {"a": "".join(f'{{"x": {x}, "k": "a"}}\n' for x in (1, 2, 1))})
    found = extract(parse_query(text), tmp_path).value
    registry.function_of.cache_clear()
    assert (found.groups["a"] if "by" in text else found) is None


def test_hostile_json(tmp_path: Path) -> None:
    lines = [
        "[" * 100_000,
        '{"k": "\\ud800"}',
        '{"k": "' + "y" * 300 + '"}',
        '{"k": 1' + "0" * 5000 + "}",
        '{"k": "fine"}',
    ]
    write(tmp_path, {"a": "\n".join(lines)})
    found = extract(parse_query("count by k"), tmp_path)
    assert found.value.groups == {"fine": 1}
    assert found.report.records_rejected == 4


def test_caps_on_files_bytes_and_groups(tmp_path: Path) -> None:
    write(tmp_path, {f"{index}": f'{{"k": {index}}}\n' for index in range(6)})
    query = parse_query("count by k", groups_max=2)
    found = extract(query, tmp_path, FileSelection(files_max=5, bytes_max=40))
    assert (found.report.files_read, found.report.files_skipped) == (4, 2)
    assert found.value.groups == {"0": 1, "1": 1}
    assert (found.value.remainder.groups, found.value.remainder.state) == (2, 2)
    assert extract(query, tmp_path).value.remainder.state == 4


def test_progress_and_a_missing_root(tmp_path: Path) -> None:
    write(tmp_path, {"a": "", "b": ""})
    calls: list[tuple[int, int]] = []
    extract(parse_query("count"), tmp_path, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(1, 2), (2, 2)]
    with pytest.raises(Unavailable, match="not a folder"):
        extract(parse_query("count"), tmp_path / "missing")

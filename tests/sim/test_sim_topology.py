"""The distances between nodes: files, graphs, formulas, and the table ``[topology]``."""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import os
import statistics
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy
import pytest
from hypothesis import given, strategies as st

from peerd.errors import ConfigError
from peerd.sim.latency import EuclideanLatency, LatencyModel, SphereLatency
from peerd.sim.rng import fork
from peerd.sim.scenario import load_scenario
from peerd.sim.simulation import Simulation
from peerd.sim.topology import graph as topology_graph, sites as topology_sites
from peerd.sim.topology.graph import Graph, TransitStub, TransitStubLatency, read_routers, shortest_paths
from peerd.sim.topology.sites import SiteLatency, Sites, filled, mean_rtt_ms, parse_sites, read_sites
from peerd.sim.topology.topology import Topology

TRIANGLE = """
# round-trip times, ms
sites lisbon oslo sydney
0.4
60    0.5
290   -    0.4
"""
ROUTERS = """3 3
R\t0\t10\t10
R\t1\t20\t10
N\t2\t30\t10
0\t1\t100
1\t2\t200
0\t2\t1000
"""
DATA = "PEERD_DATA"


def from_text(text: str) -> Sites:
    """Read a table of the configuration as if it stood in a file."""
    return parse_sites(text, "some.txt")


def write(path: Path, text: str) -> Path:
    """The path, with the text in it."""
    path.write_text(text, "utf-8")
    return path


# Matrix files


def test_triangle_gives_one_way_delays_and_fills_by_the_shortest_detour() -> None:
    model = SiteLatency.of(from_text(TRIANGLE), 0, 0.001, None)
    assert model.latency_s(0, 1) == model.latency_s(1, 0) == pytest.approx(0.030)
    assert model.latency_s(1, 2) == pytest.approx((0.060 + 0.290) / 2), "oslo to sydney was not measured"
    assert from_text(TRIANGLE).names == ("lisbon", "oslo", "sydney")


def test_nodes_repeat_the_sites_and_those_of_one_site_are_near() -> None:
    model = SiteLatency.of(from_text(TRIANGLE), 0, 0.001, None)
    assert model.latency_s(3, 4) == model.latency_s(0, 1)
    assert model.latency_s(0, 3) == pytest.approx(0.0005), "half of local_rtt, which is more than half of 0.4 ms"
    assert SiteLatency.of(from_text("5\n50 5"), 0, 0.001, None).latency_s(0, 2) == pytest.approx(0.0025), "measured"


def test_full_matrix_takes_the_mean_of_both_directions_or_the_one_there_is() -> None:
    rows = filled(from_text("0 10 20\n 30 nan -\n - 50 0").rtt_ms)
    assert [list(row) for row in rows] == [[0, 20, 20], [20, 0, 50], [20, 50, 0]]


def test_pair_without_a_detour_gets_the_median() -> None:
    rows = filled(from_text("0\n 10 0\n 30 20 0\n - - - 0").rtt_ms)
    assert rows[3][0] == rows[0][3] == rows[3][1] == 20
    with pytest.raises(ConfigError, match="no round-trip time between any two"):
        filled(from_text("0\n- 0").rtt_ms)


def test_scaling_sets_the_mean_over_pairs_of_sites() -> None:
    model = SiteLatency.of(from_text(TRIANGLE), 0, 0.001, 0.180)
    pairs = itertools.combinations(range(3), 2)
    assert statistics.mean(2 * model.latency_s(a, b) for a, b in pairs) == pytest.approx(0.180)
    with pytest.raises(ConfigError, match="which nothing scales"):
        SiteLatency.of(from_text("0\n0 0"), 0, 0.001, 0.180)


@pytest.mark.parametrize(
    "rows", [[], [[]], [[0.0, 1.0]], [[0.0, 1.0], [1.0]], [[math.nan]], [[0.0, math.inf], [1.0, 0.0]], [[-1.0]]]
)
def test_matrix_that_is_none(rows: list[list[float]]) -> None:
    with pytest.raises(ConfigError, match=r"topology\.matrix_s: a latency"):
        SiteLatency(rows)


def test_weights_place_nodes() -> None:
    text = "weights 3 0 1\n" + TRIANGLE
    model = SiteLatency.of(from_text(text), 7, 0.001, None)
    counts = [sum(model.site(index) == site for index in range(4000)) for site in range(3)]
    assert counts[1] == 0 and counts[0] / counts[2] == pytest.approx(3, rel=0.15)
    again = SiteLatency.of(from_text(text), 7, 0.001, None)
    assert [model.site(index) for index in range(50)] == [again.site(index) for index in reversed(range(50))][::-1]


@given(
    st.integers(1, 8).flatmap(
        lambda n: st.lists(st.lists(st.floats(0, 500), min_size=n, max_size=n), min_size=n, max_size=n)
    )
)
def test_whatever_the_matrix_a_triangle_says_the_same(rows: list[list[float]]) -> None:
    """Written in full and as a triangle, a symmetric matrix is the same; no value is lost or moved."""
    size = len(rows)
    symmetric = [[rows[max(a, b)][min(a, b)] for b in range(size)] for a in range(size)]
    full = from_text("\n".join(" ".join(map(repr, row)) for row in symmetric))
    triangle = from_text("\n".join(" ".join(map(repr, row[: a + 1])) for a, row in enumerate(symmetric)))
    assert filled(full.rtt_ms) == filled(triangle.rtt_ms)
    assert [list(row) for row in filled(full.rtt_ms)] == [list(row) for row in symmetric]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "no rows"),
        ("1 2\n3", "1 values in row 2; expected 2"),
        ("1\n2 3\n4", "1 values in row 3; expected one more each row"),
        ("1\n2 x", "line 2: 'x' is no number"),
        ("1\n-2 1", "line 2: -2 is not 0 or more"),
        ("1\n9e9 1", "line 2: 9e9 ms is no round-trip time"),
        ("sites a\n1\n2 1", "sites: 1 sites are named and there are 2 rows"),
        ("weights 0 0\n1\n2 1", "weights: expected 2 weights"),
        ("weights 1e308 1e308\n1\n2 1", "weights: expected 2 weights"),
        ("weights 1 nan\n1\n2 1", "weights: nan is not 0 or more"),
        ("weights 1\n1\n2 1", "weights: expected 2 weights"),
        ("1 2\n3 4\n5 6", "2 values in row 1; expected 3"),
        ("1\n2 inf", "line 2: inf is not 0 or more"),
        ("1\n2 1\0", "line 2: '1\\x00' is no number"),
        ("1\nsites a b\n2 1", "line 2: 'sites' stands once, above the rows"),
    ],
)
def test_bad_text_names_file_line_and_what_was_expected(tmp_path: Path, text: str, expected: str) -> None:
    path = write(tmp_path / "rtt.txt", text)
    with pytest.raises(ConfigError) as caught:
        read_sites(path)
    assert str(caught.value).startswith(f"{path}: ") and expected in str(caught.value)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_text_of_any_editor(tmp_path: Path, encoding: str, end: str) -> None:
    sites, routers = tmp_path / "rtt.txt", tmp_path / "routers.txt"
    sites.write_bytes(TRIANGLE.strip().replace("\n", end).encode(encoding))
    routers.write_bytes(ROUTERS.replace("\n", end).encode(encoding))
    assert read_sites(sites).names == ("lisbon", "oslo", "sydney")
    assert read_routers(routers)[0] == [(1, 100.0), (2, 1000.0)]


@pytest.mark.parametrize("read", [read_sites, read_routers])
def test_what_is_no_text_at_all(tmp_path: Path, read: Callable[[Path], object]) -> None:
    path = tmp_path / "some.txt"
    for content in (bytes(range(256)), "0 1".encode("utf-16")):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match="UTF-8 text"):
            read(path)
    for strange in (tmp_path, tmp_path / "none.txt"):
        with pytest.raises(ConfigError, match="cannot be read"):
            read(strange)


@pytest.mark.parametrize("what", [topology_sites, topology_graph])
def test_file_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: ModuleType) -> None:
    path = write(tmp_path / "some.txt", TRIANGLE if what is topology_sites else ROUTERS)
    read = read_sites if what is topology_sites else read_routers
    monkeypatch.setattr(what, "FILE_BYTES_MAX", path.stat().st_size)
    read(path)
    monkeypatch.setattr(what, "FILE_BYTES_MAX", path.stat().st_size - 1)
    with pytest.raises(ConfigError, match=r"some\.txt: over \d+ bytes is no"):
        read(path)


def test_too_many_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology_sites, "SITES_MAX", 2)
    with pytest.raises(ConfigError, match="over 2 sites"):
        from_text(TRIANGLE)
    numpy.savez(tmp_path / "rtt.npz", rtt=numpy.ones((3, 3)))
    with pytest.raises(ConfigError, match="no latency matrix"):
        read_sites(tmp_path / "rtt.npz")


def test_only_an_archive_has_slices(tmp_path: Path) -> None:
    text, archive = write(tmp_path / "rtt.txt", TRIANGLE), tmp_path / "rtt.npz"
    numpy.savez(archive, rtt=numpy.ones((2, 2)))
    assert len(read_sites(text, 0).rtt_ms) == 3 and len(read_sites(archive, 0).rtt_ms) == 2
    for path in (text, archive):
        with pytest.raises(ConfigError, match="no slice 1"):
            read_sites(path, 1)


def test_archive_with_slices(tmp_path: Path) -> None:
    path = tmp_path / "rtt.npz"
    first = numpy.array([[0, 10], [10, 0]], dtype="float32")
    numpy.savez(path, rtt=numpy.stack([first, 3 * first]))
    assert read_sites(path, 1).rtt_ms[0][1] == 30 and read_sites(path).weights is None
    with pytest.raises(ConfigError, match="no slice 2: there are 2"):
        read_sites(path, 2)


def test_archive_of_cities_places_nodes_by_population(tmp_path: Path) -> None:
    path = tmp_path / "cities.npz"
    nan = math.nan
    average = numpy.array([[nan, 20, nan], [22, nan, 40], [nan, 44, nan]], dtype="float32")
    numpy.savez(path, avg=average, names=numpy.array(["a", "b", "c"]), pop=numpy.array([1e6, nan, 3e6]))
    sites = read_sites(path)
    assert sites.names == ("a", "b", "c") and sites.weights == (1e6, 0.0, 3e6)
    assert [list(row) for row in filled(sites.rtt_ms)] == [[0, 21, 63], [21, 0, 42], [63, 42, 0]]


def test_bad_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bad.npz"
    for arrays, expected in (
        ({"other": numpy.zeros(3)}, 'expected an array "rtt" or "avg"'),
        ({"rtt": numpy.zeros((2, 3))}, "no latency matrix"),
        ({"rtt": -numpy.ones((2, 2))}, "round-trip times are from 0"),
        ({"rtt": numpy.array([[{}, 1], [1, {}]])}, "plain arrays"),
        ({"rtt": numpy.array(1.0)}, "no latency matrix"),
        ({"rtt": numpy.zeros((0, 0))}, "no latency matrix"),
        ({"rtt": numpy.zeros((2, 2), complex)}, "plain arrays: Cannot cast"),
        ({"rtt": numpy.array([["1", "2"], ["3", "4"]])}, "plain arrays: Cannot cast"),
        ({"rtt": numpy.zeros((2, 2), [("a", "f4"), ("b", "f4")])}, "plain arrays: Cannot cast"),
        ({"rtt": numpy.zeros((2, 2), "M8[s]")}, "plain arrays: Cannot cast"),
        ({"rtt": numpy.ones((2, 2)), "names": numpy.array("a")}, "1 sites are named"),
        ({"rtt": numpy.ones((2, 2)), "pop": numpy.array(7)}, "expected 2 weights"),
        ({"rtt": numpy.ones((2, 2)), "pop": numpy.ones((2, 2))}, "expected 2 weights"),
        ({"rtt": numpy.ones((2, 2)), "pop": numpy.array(["1", "2"])}, "plain arrays: Cannot cast"),
        ({"rtt": numpy.ones((2, 2)), "pop": numpy.array([1, numpy.inf])}, "expected 2 weights"),
    ):
        numpy.savez(path, **arrays)
        with pytest.raises(ConfigError, match=expected):
            read_sites(path)
    write(path, "PK no archive")
    with pytest.raises(ConfigError, match=r"bad\.npz: not a NumPy archive"):
        read_sites(path)
    monkeypatch.setitem(sys.modules, "numpy", None)  # as if it were not installed
    with pytest.raises(ConfigError, match=r"pip install \"peerd\[lab\]\""):
        read_sites(path)


def test_archive_that_is_damaged_or_something_else(tmp_path: Path) -> None:
    path, content = tmp_path / "bad.npz", io.BytesIO()
    numpy.savez_compressed(path, rtt=numpy.arange(900.0).reshape(30, 30))
    whole = path.read_bytes()
    numpy.save(content, numpy.ones((2, 2)))
    array = content.getvalue()
    huge = array.replace(b"(2, 2), }" + b" " * 12, b"(99999999, 999999), }")
    assert len(huge) == len(array)
    wrong = [b"", array, _zipped("rtt", b"text"), _zipped("rtt.npy", b"text"), _zipped("rtt.npy", huge)]
    wrong += [_zipped("rtt.npy", array.replace(b"}", b"(")), whole[:-30], whole[: len(whole) // 2]]
    for content_of_file in wrong:
        path.write_bytes(content_of_file)
        with pytest.raises(ConfigError, match=r"bad\.npz: not a NumPy archive"):
            read_sites(path)
    for place in range(len(whole)):  # some of it does not matter
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        with contextlib.suppress(ConfigError):
            read_sites(path)


def _zipped(name: str, content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, content)
    return file.getvalue()


# Formulas


def test_torus_has_no_edge() -> None:
    torus, square = (EuclideanLatency(3, 0.1, 0.0, is_torus=flag) for flag in (True, False))
    pairs = list(itertools.combinations(range(60), 2))
    assert all(torus.latency_s(a, b) <= square.latency_s(a, b) for a, b in pairs)
    assert max(torus.latency_s(a, b) for a, b in pairs) <= 0.1 / math.sqrt(2)
    assert statistics.mean(torus.latency_s(a, b) for a, b in pairs) == pytest.approx(0.0383, rel=0.05)


def test_sphere_is_great_circles() -> None:
    model = SphereLatency(3, half_turn_s=0.1, minimum_s=0.001)
    pairs = list(itertools.combinations(range(80), 2))
    assert statistics.mean(model.latency_s(a, b) for a, b in pairs) == pytest.approx(0.051, rel=0.05)
    for a, b in pairs[:300]:
        angle = math.acos(sum(x * y for x, y in zip(model.point(a), model.point(b), strict=True)))
        assert model.latency_s(a, b) == pytest.approx(0.001 + 0.1 * angle / math.pi)
    assert model.latency_s(4, 4) == 0.001


# Graphs


@given(st.integers(2, 9), st.floats(0, 1), st.integers(0, 1 << 32))
def test_shortest_paths_agree_with_relaxing_until_nothing_changes(size: int, share: float, seed: int) -> None:
    generator = fork(seed, "graph")
    graph: list[list[tuple[int, float]]] = [[] for _ in range(size)]
    for a, b in itertools.combinations(range(size), 2):
        if generator.random() < share:
            length = float(generator.randrange(10))
            graph[a].append((b, length))
            graph[b].append((a, length))
    lengths = [0.0] + [math.inf] * (size - 1)
    for _ in range(size):  # Bellman-Ford
        for a, links in enumerate(graph):
            for b, length in links:
                lengths[b] = min(lengths[b], lengths[a] + length)
    assert shortest_paths(graph, 0) == lengths


def test_random_edges_are_a_tree_and_each_other_pair_once() -> None:
    pairs = set(itertools.combinations(range(30), 2))
    for seed in range(20):
        tree, some, every = (topology_graph._random_edges(30, more, fork(seed, "x")) for more in (0.0, 0.3, 1.0))
        assert tree == some[:29] and len(tree) == 29
        assert sorted(every) == sorted(pairs) and len(set(some)) == len(some) and set(some) <= pairs
        graph: list[list[tuple[int, float]]] = [[] for _ in range(30)]
        for a, b in tree:
            topology_graph._link(graph, a, b, 1.0)
        assert max(shortest_paths(graph, 0)) < math.inf


def test_links_of_a_kind_vary_by_half_around_their_mean() -> None:
    of_one = TransitStub(transit_domains=2, transit_routers=1, stubs=1, stub_routers=2)
    of_two = TransitStub(transit_domains=1, transit_routers=2, stubs=1, stub_routers=2)
    models = [TransitStubLatency(seed, of_one) for seed in range(300)]
    for delays, mean_s in (
        ([model.across(0, 1) for model in models], of_one.domain_link),
        ([TransitStubLatency(seed, of_two).across(0, 1) for seed in range(300)], of_two.transit_link),
        ([model._stub(0).up[0] for model in models], of_one.access_link),
        ([model._stub(0).inside[0][1] for model in models], of_one.stub_link),
    ):
        assert statistics.mean(delays) == pytest.approx(mean_s, rel=0.05)
        assert 0.5 * mean_s <= min(delays) < 0.55 * mean_s and 1.45 * mean_s < max(delays) <= 1.5 * mean_s


def test_domains_are_linked_everywhere_when_told_so() -> None:
    shape = TransitStub(transit_domains=3, transit_routers=8, stub_routers=20, more_links=1.0)
    model = TransitStubLatency(1, shape)
    inside = model._stub(0).inside
    assert model._stub(1).inside != inside, "no two are alike"
    assert max(inside[a][b] for a in range(20) for b in range(20)) <= 1.5 * shape.stub_link
    assert max(model.across(a, b) for a in range(8) for b in range(8)) <= 1.5 * shape.transit_link
    ends = {(a, b) for a in range(24) for b, _ in model._core[a] if a // 8 < b // 8}
    assert {(a // 8, b // 8) for a, b in ends} == {(0, 1), (0, 2), (1, 2)}
    assert len({router for pair in ends for router in pair}) > 3, "not all at one router of a domain"


def test_transit_stub_is_a_walk_down_the_hierarchy() -> None:
    shape = TransitStub(transit_domains=3, transit_routers=2, stubs=4, stub_routers=3)
    model = TransitStubLatency(1, shape)
    by_place: dict[tuple[int, int], list[int]] = {}
    for index in range(400):
        by_place.setdefault(model.place(index), []).append(index)
    assert len(by_place) == 3 * 2 * 4 * 3, "some node at every stub router"
    one_router = next(nodes for nodes in by_place.values() if len(nodes) > 1)
    assert model.latency_s(one_router[0], one_router[1]) == 2 * shape.last_hop
    for a, b in itertools.combinations(range(60), 2):
        delay = model.latency_s(a, b)
        assert delay == model.latency_s(b, a)
        if model.place(a)[0] == model.place(b)[0]:
            assert delay <= 2 * shape.last_hop + 2 * 1.5 * shape.stub_link
        else:
            assert delay >= 2 * (shape.last_hop + 0.5 * shape.access_link)
    domains = [model.place(index)[0] // (shape.stubs * shape.transit_routers) for index in range(60)]
    across = [model.latency_s(a, b) for a, b in itertools.combinations(range(60), 2) if domains[a] != domains[b]]
    assert min(across) >= 0.5 * shape.domain_link


def test_transit_stub_agrees_with_dijkstra_on_the_whole_graph() -> None:
    shape = TransitStub(transit_domains=2, transit_routers=3, stubs=2, stub_routers=4)
    model = TransitStubLatency(9, shape)
    whole = _whole_graph(model, shape)
    for a, b in itertools.combinations(range(40), 2):
        expected = shortest_paths(whole, _number(model, shape, a))[_number(model, shape, b)]
        assert model.latency_s(a, b) == pytest.approx(2 * shape.last_hop + expected)


def test_transit_stub_computes_the_ways_in_use_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest core that may be asked for has 10,000 routers, and every way through it takes hours."""
    asked: list[int] = []

    def noted(graph: Graph, source: int) -> list[float]:
        asked.append(len(graph))
        return shortest_paths(graph, source)

    monkeypatch.setattr(topology_graph, "shortest_paths", noted)
    model = TransitStubLatency(1, TransitStub(transit_domains=20, transit_routers=10))
    assert not asked
    model.latency_s(0, 1)
    model.latency_s(1, 0)
    assert asked.count(200) == 1


def _number(model: TransitStubLatency, shape: TransitStub, index: int) -> int:
    stub, router = model.place(index)
    return shape.transit_domains * shape.transit_routers + stub * shape.stub_routers + router


def _whole_graph(model: TransitStubLatency, shape: TransitStub) -> Graph:
    """Every pair inside a domain and every way up as a link: not the generated links, but the same shortest paths."""
    core = shape.transit_domains * shape.transit_routers
    graph: list[list[tuple[int, float]]] = [[] for _ in range(core * (1 + shape.stubs * shape.stub_routers))]
    for a, b in itertools.permutations(range(core), 2):
        graph[a].append((b, model.across(a, b)))
    for number in range(core * shape.stubs):
        stub, first = model._stub(number), core + number * shape.stub_routers
        for a, b in itertools.permutations(range(shape.stub_routers), 2):
            graph[first + a].append((first + b, stub.inside[a][b]))
        transit = number // shape.stubs
        graph[first].append((transit, stub.up[0]))
        graph[transit].append((first, stub.up[0]))
    return graph


def test_router_file_gives_shortest_paths_scaled_to_the_mean(tmp_path: Path) -> None:
    path = write(tmp_path / "routers.txt", ROUTERS)
    model = Topology(model="inet", file=str(path), scale_mean_rtt=0.2, local_rtt=0.01).build(5)
    # lengths 100, 200 and, round the corner, 300: a mean of 200 is an RTT of 200 ms, so one unit is 0.5 ms one-way
    delays = {round(model.latency_s(a, b), 9) for a in range(40) for b in range(40)}
    assert delays == {0.005, 0.05, 0.1, 0.15}, "and half of local_rtt at one router"
    assert model.latency_s(0, 9) == model.latency_s(9, 0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "0 routers"),
        ("three 3", "line 1: expected 2 numbers"),
        ("9" * 400 + " 3", "expected 2 to 20000"),
        ("9" * 5000 + " 3", "line 1: expected 2 numbers"),
        ("3 " + "9" * 400, "1 lines; the first one promises 3 routers and 999"),
        ("3 -1\nR 0 1 1\nR 1 1 1\n", "3 lines; the first one promises 3 routers and -1 links"),
        (ROUTERS.replace("1000", "-1"), "line 7: expected two routers from 0 to 2 and a length from 0"),
        (ROUTERS.replace("1000", "nan"), "line 7: expected two routers from 0 to 2 and a length from 0"),
        (ROUTERS.replace("1000", "1e31"), "line 7: expected two routers from 0 to 2 and a length from 0 to 1e+30"),
        ("3 9\nR 0 1 1\n", "2 lines; the first one promises 3 routers and 9 links"),
        (ROUTERS.replace("0\t2\t1000", "0\t7\t1000"), "line 7: expected two routers from 0 to 2"),
        (ROUTERS.replace("0\t2\t1000", "0\t2"), "line 7: expected 3 numbers"),
    ],
)
def test_bad_router_file(tmp_path: Path, text: str, expected: str) -> None:
    path = write(tmp_path / "routers.txt", text)
    with pytest.raises(ConfigError) as caught:
        read_routers(path)
    assert str(caught.value).startswith(f"{path}: ") and expected in str(caught.value)


def test_parts_that_are_not_connected_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "routers.txt", "4 2\nR 0 0 0\nR 1 0 0\nR 2 0 0\nR 3 0 0\n0 1 5\n2 3 5\n")
    with pytest.raises(ConfigError, match="not every router can reach every other"):
        Topology(model="inet", file=str(path), scale_mean_rtt=0.2).build(5)


@pytest.mark.parametrize("unit", [1e27, 1e-29])
def test_lengths_may_have_any_unit(tmp_path: Path, unit: float) -> None:
    def delays(factor: float) -> list[float]:
        lines = [f"0 1 {100 * factor!r}", f"1 2 {200 * factor!r}", f"0 2 {1000 * factor!r}"]
        path = write(tmp_path / "routers.txt", "\n".join(["3 3", *["R 0 1 1"] * 3, *lines]))
        model = Topology(model="inet", file=str(path), scale_mean_rtt=0.2).build(5)
        return [model.latency_s(0, index) for index in range(20)]

    assert delays(unit) == pytest.approx(delays(1.0))
    with pytest.raises(ConfigError, match="0 or next to it"):
        delays(1e-40)


# The table


MODELS: dict[str, Callable[[Path], Topology]] = {
    "euclidean": lambda folder: Topology(torus=True),
    "sphere": lambda folder: Topology(model="sphere"),
    "transit-stub": lambda folder: Topology(model="transit-stub"),
    "matrix": lambda folder: Topology(model="matrix", file=str(write(folder / "rtt.txt", TRIANGLE))),
    "inet": lambda folder: Topology(model="inet", file=str(write(folder / "i.txt", ROUTERS)), scale_mean_rtt=0.1),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_a_function_of_the_seed_alone(tmp_path: Path, name: str) -> None:
    def delays(model: LatencyModel, pairs: list[tuple[int, int]]) -> dict[tuple[int, int], float]:
        return {pair: model.latency_s(*pair) for pair in pairs}

    topology = MODELS[name](tmp_path)
    pairs = [(a, b) for a in range(30) for b in range(30)]
    first, second = delays(topology.build(4), pairs), delays(topology.build(4), pairs[::-1])
    assert first == second, "whatever the order of the questions"
    assert all(value > 0 and value == first[b, a] for (a, b), value in first.items())
    if name != "matrix":  # its nodes take the sites in turn
        assert first != delays(topology.build(5), pairs)


@pytest.mark.parametrize(
    ("topology", "at_one_place"),
    [
        (Topology(model="constant", latency_s=0.7), 0.7),
        (Topology(minimum_s=0.7), 0.7),
        (Topology(minimum_s=0.7, torus=True), 0.7),
        (Topology(model="sphere", minimum_s=0.7), 0.7),
        (Topology(model="matrix", matrix_s=((0.0,),), local_rtt=0.7), 0.35),
        (Topology(model="matrix", matrix_s=((0.7,),), local_rtt=0.7), 0.7),
        (Topology(model="matrix", matrix_s=((0.7,),)), 0.7),
        (Topology(model="transit-stub", transit_stub=TransitStub(last_hop=0.7)), 1.4),
    ],
)
def test_least_delay_is_what_the_table_says(topology: Topology, at_one_place: float) -> None:
    assert topology.build(3).latency_s(5, 5) == pytest.approx(at_one_place)


@pytest.mark.parametrize(
    ("topology", "longest"),
    [(Topology(side_s=0.5), 0.5 * math.sqrt(2)), (Topology(model="sphere", half_turn=0.5), 0.5)],
)
def test_longest_delay_is_what_the_table_says(topology: Topology, longest: float) -> None:
    model = topology.build(3)
    delays = [model.latency_s(a, b) for a, b in itertools.combinations(range(100), 2)]
    assert 0.85 * longest < max(delays) <= longest + 0.001


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('model = "sphere"\nside_s = 1', "side_s says nothing to the model 'sphere'"),
        ('model = "matrix"', "takes one of matrix_s and file"),
        ('model = "inet"\nfile = "x.txt"', "takes a file and scale_mean_rtt"),
        ('model = "matrix"\nmatrix_s = [[0.0]]\nscale_mean_rtt = "1s"', "go with file"),
        ('model = "sphere"\nhalf_turn = "fast"', "expected a duration with its unit"),
        ('model = "matrix"\nfile = "a\\u0000b"', "no file has a NUL in its name"),
        (
            'model = "transit-stub"\ntransit_stub = { stub = 3 }',
            'unknown key, did you mean "stubs"',
        ),
    ],
)
def test_table_refuses_what_makes_no_sense(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        load_scenario(write(tmp_path / "bad.toml", f"[topology]\n{text}"))


def test_file_is_found_beside_the_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "scenarios"
    folder.mkdir()
    write(folder / "rtt.txt", TRIANGLE)
    text = '[topology]\nmodel = "matrix"\nfile = "rtt.txt"\nscale_mean_rtt = "180ms"\n'
    monkeypatch.chdir(tmp_path)
    model = load_scenario(write(folder / "wan.toml", text)).topology.build(0)
    assert model.latency_s(0, 1) == pytest.approx(0.09 * 60 / ((60 + 290 + 350) / 3))


@pytest.mark.parametrize("name", MODELS)
def test_nodes_join_and_measure_what_the_model_says(tmp_path: Path, name: str) -> None:
    simulation = Simulation(3, latency=MODELS[name](tmp_path).build(3))
    simulation.start(12)
    simulation.run_until(simulation.is_ready, limit_s=60)


def test_real_sets() -> None:
    """Runs where the environment variable names a folder of public data sets; says which ones are not there."""
    if DATA not in os.environ:
        pytest.skip(f"{DATA} does not name a folder with PlanetLab, WonderNetwork and Inet files: not read")
    folder = Path(os.environ[DATA])
    latency, missing = folder / "latency", []
    for path, sites, mean_ms in (
        (latency / "planetlab_rtt_ms_18x490x490.npz", 490, 146.8),
        (latency / "wondernetwork_2018_242cities.npz", 242, 156.2),
    ):
        if not path.exists():
            missing.append(path.name)
            continue
        rows = filled(read_sites(path).rtt_ms)
        assert len(rows) == sites and mean_rtt_ms(rows) == pytest.approx(mean_ms, rel=0.01)
        model = Topology(model="matrix", file=str(path), scale_mean_rtt=0.18).build(1)
        assert 0 < model.latency_s(0, 4999) < 5
    for routers in (1000, 3000, 4000, 5000):
        path = folder / "topology" / f"inet-{routers}.txt"
        if not path.exists():
            missing.append(path.name)
            continue
        model = Topology(model="inet", file=str(path), scale_mean_rtt=0.1).build(1)
        delays = [2 * model.latency_s(index, index + 1) for index in range(0, 100, 2)]
        assert statistics.mean(delays) == pytest.approx(0.1, rel=0.2)
    if missing:
        pytest.skip(f"not in {folder}: {', '.join(missing)}; the others were read")

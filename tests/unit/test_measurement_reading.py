"""What is read of the machine, of files and of Prometheus endpoints, and what is not believed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest
from hypothesis import given, strategies as st

from protocols.measurement.sources import scraped
from protocols.measurement.sources.file import FILE_BYTES_MAX, FileSource, parse_values
from protocols.measurement.sources.scraped import ScrapedSource, check_url, parse_selector, select
from protocols.measurement.sources.source import RESERVED, gather
from protocols.measurement.sources.system import Counters, MachineSource, memory, processor, traffic, transfers

STAT = "cpu  100 10 40 800 50 5 5 2 7 0\ncpu0 50 5 20 400 25 2 2 1 3 0\nintr 1\n"
MEMINFO = "MemTotal:        1000 kB\nMemFree:          100 kB\nMemAvailable:     250 kB\nHugePages_Total:       0\n"
NET = (
    "Inter-|   Receive                            |  Transmit\n face |bytes packets\n"
    "    lo: 999 1 0 0 0 0 0 0 999 1 0 0 0 0 0 0\n"
    "  eth0: 1000 1 0 0 0 0 0 0 2000 1 0 0 0 0 0 0\n"
    "wlan0:30 1 0 0 0 0 0 0 40 1 0 0 0 0 0 0\n"
    "docker0: 500 1 0 0 0 0 0 0 500 1 0 0 0 0 0 0\neth0.7: 500 1 0 0 0 0 0 0 500 1 0 0 0 0 0 0\n"
)
DISKS = (
    "   7  0 loop0 9 9 900 9 9 9 900 9 0 9 9\n"
    "   8  0 sda 1 0 20 3 4 0 40 7 0 9 9\n   8  1 sda1 1 0 20 3 4 0 40 7 0 9 9\n"
    " 259  0 nvme0n1 1 0 2 3 4 0 6 7 0 9 9 0 0 0 0 0 0\n 259  1 nvme0n1p1 1 0 2 3 4 0 6 7 0 9 9\n"
    " 253 0 dm-0 1 0 9 3 4 0 9 7 0 9 9\n"
)
FILES: Mapping[str, str] = {
    "stat": STAT,
    "meminfo": MEMINFO,
    "loadavg": "0.75 0.5 0.25 2/345 999\n",
    "uptime": "100.00 350.00\n",
    "net/dev": NET,
    "diskstats": DISKS,
}


def proc_folder(folder: Path, files: Mapping[str, str] = FILES) -> Path:
    """A folder that looks like /proc, with three processes."""
    for name in ("1", "22", "333", "self", "net"):
        (folder / name).mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def test_lines_of_proc_are_read_as_proc_5_says() -> None:
    assert processor(STAT) == {("cpu_busy", ""): 162, ("cpu_idle", ""): 850}, "guest time is in user time already"
    assert memory(MEMINFO) == {"memory": 0.75, "memory_available_bytes": 250 * 1024}
    assert traffic(NET) == {
        ("network_receive_bytes_per_second", "eth0"): 1000,
        ("network_receive_bytes_per_second", "wlan0"): 30,
        ("network_transmit_bytes_per_second", "eth0"): 2000,
        ("network_transmit_bytes_per_second", "wlan0"): 40,
    }
    assert transfers(DISKS) == {
        ("disk_read_bytes_per_second", "sda"): 20 * 512,
        ("disk_read_bytes_per_second", "nvme0n1"): 2 * 512,
        ("disk_write_bytes_per_second", "sda"): 40 * 512,
        ("disk_write_bytes_per_second", "nvme0n1"): 6 * 512,
    }


def test_the_second_reading_has_rates(tmp_path: Path) -> None:
    source = MachineSource(5.0, tmp_path, proc_folder(tmp_path))
    first = source.read(0.0)
    assert first["load1"] == 0.75 and first["processes"] == 3 and first["uptime_seconds"] == 100.0
    assert not any(name == "cpu" or name.endswith("_second") for name in first)
    changed = {"stat": "cpu  130 10 40 860 60 5 5 2 9 0\n", "uptime": "104.00 1\n"}
    changed["net/dev"] = NET.replace("1000", "5000").replace("40 1 0", "80 1 0")
    changed["diskstats"] = DISKS.replace("sda 1 0 20", "sda 1 0 36")
    proc_folder(tmp_path, changed)
    second = source.read(99.0)
    assert second["cpu"] == pytest.approx(0.3), "30 ticks of work in 100"
    assert second["network_receive_bytes_per_second"] == 1000.0
    assert second["network_transmit_bytes_per_second"] == 10.0
    assert second["disk_read_bytes_per_second"] == 2048.0
    assert second["disk_write_bytes_per_second"] == 0.0
    assert second.keys() == {name for name in RESERVED if name not in ("rtt", "bandwidth")}


@pytest.mark.parametrize(
    ("file", "missing"),
    [
        ("stat", {"cpu"}),
        ("meminfo", {"memory", "memory_available_bytes"}),
        ("loadavg", {"load1"}),
        ("net/dev", {"network_receive_bytes_per_second", "network_transmit_bytes_per_second"}),
        ("diskstats", {"disk_read_bytes_per_second", "disk_write_bytes_per_second"}),
        ("uptime", {"uptime_seconds", "cpu", *(name for name in RESERVED if name.endswith("_second"))}),
    ],
)
@pytest.mark.parametrize("is_garbage", [False, True])
def test_without_a_file_only_its_measurements_are_missing(
    tmp_path: Path, file: str, missing: set[str], is_garbage: bool
) -> None:
    source = MachineSource(5.0, tmp_path, proc_folder(tmp_path))
    (tmp_path / file).unlink()
    if is_garbage:
        (tmp_path / file).write_text("what\nis\nthis thing here: it is no\n")
    source.read(0.0)
    proc_folder(tmp_path, {"stat": "cpu 200 10 40 900 60 5 5 2 9 0\n"} if file != "stat" else {})
    if file != "uptime":
        (tmp_path / "uptime").write_text("110.00 1\n")
    assert source.read(10.0).keys() == {*RESERVED} - {"rtt", "bandwidth"} - missing


def test_a_counter_that_goes_back_gives_nothing_for_one_period() -> None:
    first = Counters(10.0, {("in", "eth0"): 2**32 - 10, ("in", "eth1"): 5, ("out", "eth0"): 7})
    wrapped = Counters(15.0, {("in", "eth0"): 40, ("in", "eth1"): 500, ("out", "eth0"): 17})
    after = Counters(20.0, {("in", "eth0"): 90, ("in", "eth1"): 550, ("out", "eth0"): 17})
    assert wrapped.rates_since(first) == {"out": 2.0}
    assert after.rates_since(wrapped) == {"in": 20.0, "out": 0.0}
    assert after.rates_since(None) == {}
    little = Counters(25.0, {("in", "eth0"): 80, ("in", "eth1"): 950, ("out", "eth0"): 17})
    assert little.rates_since(after) == {"out": 0.0}, "what the others have grown does not make up for it"


def test_a_device_counts_from_when_it_was_there_twice_and_time_has_to_pass() -> None:
    first = Counters(10.0, {("in", "eth0"): 100})
    second = Counters(12.0, {("in", "eth0"): 110, ("in", "usb0"): 10**12, ("out", "usb0"): 1})
    assert second.rates_since(first) == {"in": 5.0}, "the past of a new device is not this period's"
    assert first.rates_since(second) == {}
    assert first.rates_since(first) == {}


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="reads the /proc of Linux")
def test_this_machine(tmp_path: Path) -> None:
    source = MachineSource(5.0, tmp_path)
    before = gather(source, 0.0)
    deadline = os.times().elapsed + 5.0
    while source.read(0.0).get("cpu") is None and os.times().elapsed < deadline:
        sum(range(100_000))  # until a tick of the machine's clock has passed
    assert not before.refused
    values = before.values
    assert {"load1", "memory", "memory_available_bytes", "disk", "disk_free_bytes", "processes"} <= values.keys()
    assert 0 < values["memory"] < 1 and 0 <= values["disk"] <= 1
    assert values["processes"] >= 1 and values["uptime_seconds"] > 0


# Files


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("12.5\n", {"room": 12.5}),
        ("\n# of the sensor\n-3\n", {"room": -3.0}),
        ("42\nanything else below\n", {"room": 42.0}),
        ("temperature 21.5\nhumidity 0.4\n\n# end\n", {"temperature": 21.5, "humidity": 0.4}),
        ("\n", {}),
    ],
)
def test_a_text_is_a_number_or_names_with_numbers(text: str, values: Mapping[str, float]) -> None:
    assert parse_values(text, "room") == values


@pytest.mark.parametrize("text", ["", "12", "a 1\nb 2", "a\n", "a b\n", "a 1 2\n", "a 1\na 2\n", "a 1\n7\n"])
def test_a_text_that_is_neither_or_half_there_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_values(text, "room")


def test_a_file_is_read_anew_each_time(tmp_path: Path) -> None:
    path = tmp_path / "value"
    source = FileSource("room", 10.0, str(path))
    with pytest.raises(FileNotFoundError):
        source.read(0.0)
    path.write_text("1\n")
    assert source.read(0.0) == {"room": 1.0}
    path.write_text("Bad-Name 1\ngood nan\n")
    assert gather(source, 0.0).refused == {"bad_name": 1, "not_finite": 1}
    path.write_bytes(b"\xff\n")
    with pytest.raises(ValueError):
        source.read(0.0)


def test_a_file_that_is_too_large_or_would_block_is_not_read(tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_text("# " + "x" * FILE_BYTES_MAX + "\n")
    with pytest.raises(ValueError, match="more than"):
        FileSource("room", 10.0, str(large)).read(0.0)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ValueError, match="no ordinary file"):
        FileSource("room", 10.0, str(pipe)).read(0.0)


# Prometheus


@pytest.mark.parametrize(
    ("text", "selector"),
    [
        ("node_load1", ("node_load1", {})),
        ('http_requests_total{code="500"}', ("http_requests_total", {"code": "500"})),
        ('a{b="x", c="with \\" and , and }"}', ("a", {"b": "x", "c": 'with " and , and }'})),
        ("a{}", ("a", {})),
    ],
)
def test_selectors(text: str, selector: tuple[str, Mapping[str, str]]) -> None:
    assert parse_selector(text) == selector


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "a b", "a 1", "a 1 1", "1a", "# TYPE a gauge", "a\nb", "a{", "a}", 'a{b="x"', "a{b}", "a{b=x}"),
        *('a{b!="x"}', 'a{b=~"x"}', 'a{b="x"} 1', 'a{__name__="b"}', '{b="x"}', "rate(a[5m])", "a[5m]", "a" * 5000),
    ],
)
def test_what_is_no_selector(text: str) -> None:
    with pytest.raises(ValueError, match="expected a metric such as"):
        parse_selector(text)


@given(st.text('ab{}=",\\ 1#\n\t', max_size=20))
def test_whatever_is_written_as_a_selector_only_selects_or_is_refused(text: str) -> None:
    try:
        metric, labels = parse_selector(text)
    except ValueError as error:
        assert str(error).startswith("expected a metric")
    else:
        series = ", ".join(f'{name}="{value}"' for name, value in labels.items() if not {*value} & {*'\\"\n'})
        assert text.strip().startswith(metric)
        if len(series.split(", ")) == max(1, len(labels)):
            assert select(f"{metric}{{{series}}} 2\n", {"it": (metric, labels)}) == {"it": 2.0}


EXPOSITION = (
    "# HELP http_requests_total Requests.\n# TYPE http_requests_total counter\n"
    'http_requests_total{code="200",method="get"} 10\nhttp_requests_total{code="500",method="get"} 2 1700000000000\n'
    'http_requests_total{code="500",method="put"} 3\n# TYPE requests counter\nrequests 8\n'
    '# TYPE wait histogram\nwait_bucket{le="1"} 4\nwait_sum 2.5\nwait_count 5\nload 0.5\nbroken NaN\n'
)


def test_series_are_found_by_name_and_labels_and_summed() -> None:
    selectors = {
        "errors": 'http_requests_total{code="500"}',
        "all": "http_requests_total",
        "unlabelled": 'requests{code=""}',
        "waited": "wait_sum",
        "missing": 'http_requests_total{code="404"}',
        "broken": "broken",
    }
    found = select(EXPOSITION, {name: parse_selector(text) for name, text in selectors.items()})
    assert found.pop("broken") != 0
    assert found == {"errors": 5.0, "all": 15.0, "unlabelled": 8.0, "waited": 2.5}


def test_lines_of_other_metrics_are_not_parsed_and_those_that_are_wanted_have_to_be_right() -> None:
    selectors = {"load": parse_selector("load")}
    garbage = "other{{{ 1\n" + "x" * 100_000 + "\n"
    assert select(garbage + EXPOSITION, selectors) == {"load": 0.5}
    for wrong in ("load{ 1\n", "load what\n", "load\n", f'load{{a="{"x" * 5000}"}} 1\n', "load 0.5", ""):
        with pytest.raises((ValueError, IndexError)):
            select(wrong, selectors)
    line = 'load{a="' + "x" * 990 + '"} 1\n'
    assert select(line * 500, selectors) == {"load": 500.0}
    with pytest.raises(ValueError, match="in all"):
        select(line * 600, selectors)


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:9100/metrics", "http://localhost/metrics?a=b", "http://[::1]:9100/metrics", "http://127.8.9.1"],
)
def test_urls_of_this_machine(url: str) -> None:
    assert check_url(url, is_remote_allowed=False).geturl() == url


@pytest.mark.parametrize(
    "url", ["http://192.0.2.1:9100/metrics", "http://example.org/", "http://[2001:db8::1]/metrics"]
)
def test_urls_of_other_machines_only_where_they_are_allowed(url: str) -> None:
    with pytest.raises(ValueError, match="loopback"):
        check_url(url, is_remote_allowed=False)
    check_url(url, is_remote_allowed=True)


@pytest.mark.parametrize(
    "url",
    [
        *("", "127.0.0.1:9100", "https://127.0.0.1/", "file:///etc/passwd", "http://", "http://127.0.0.1:0/"),
        *("http://127.0.0.1:99999/", "http://user@127.0.0.1/", "http://127.0.0.1/a b", "http://127.0.0.1/\r\nX: y"),
        *("http://[::1", "http://[zz]/", "ftp://127.0.0.1/"),
    ],
)
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(ValueError):
        check_url(url, is_remote_allowed=True)


class _Endpoint(BaseHTTPRequestHandler):
    answers: ClassVar[dict[str, tuple[int, dict[str, str], bytes]]] = {}
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        status, headers, body = self.answers[self.path.partition("?")[0]]
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Tests write no access log."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    """The address of a program that answers what `_Endpoint.answers` says."""
    _Endpoint.answers, _Endpoint.asked = {}, []
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Endpoint)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def scrape(url: str) -> dict[str, float]:
    """What one reading finds."""
    selectors = {"load": parse_selector("load")}
    return ScrapedSource("app", 10.0, check_url(url, is_remote_allowed=False), selectors).read(0.0)


def test_an_endpoint_is_asked_over_http(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://192.0.2.1:1")
    _Endpoint.answers["/metrics"] = 200, {}, EXPOSITION.encode()
    assert scrape(f"{endpoint}/metrics?a=b") == {"load": 0.5}
    assert _Endpoint.asked == ["/metrics?a=b"]


def test_answers_that_are_not_taken(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _Endpoint.answers = {
        "/moved": (302, {"Location": f"{endpoint}/good"}, b""),
        "/good": (200, {}, b"load 1\n"),
        "/error": (500, {}, b"load 1\n"),
        "/short": (200, {"Content-Length": "100"}, b"load 1\n"),
        "/binary": (200, {}, b"load 1\n\xff\n"),
        "/large": (200, {}, b"load 1\n" + b"# x\n" * 1000),
    }
    assert scrape(f"{endpoint}/good") == {"load": 1.0}
    monkeypatch.setattr(scraped, "BODY_BYTES_MAX", 1000)
    for path, expected in (("moved", "302"), ("error", "500"), ("short", "announced"), ("large", "at most 1000")):
        with pytest.raises(ValueError, match=expected):
            scrape(f"{endpoint}/{path}")
    with pytest.raises(UnicodeDecodeError):
        scrape(f"{endpoint}/binary")
    assert _Endpoint.asked.count("/good") == 1, "a redirection was followed"


def test_an_endpoint_that_is_not_there_has_failed(endpoint: str) -> None:
    with pytest.raises(OSError):
        scrape("http://127.0.0.1:1/metrics")

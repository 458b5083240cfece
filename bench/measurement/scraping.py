"""A real Prometheus that scrapes one number of each node, from exporters that count what goes to and fro."""

from __future__ import annotations

import json
import socketserver
import threading
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any, Final, Self

from bench.measure import BenchFailure
from bench.processes import LOOPBACK, Children, cpu_s, free_ports, wait_until
from peerd.frozen import Frozen
from protocols.measurement.sources.system import processor

START_S: Final = 30.0
UP: Final = "count(up==1)"


class Scraped(Frozen):
    """What Prometheus has caused in a second."""

    answer_bytes: float
    question_bytes: float
    processor_s: float
    """Of Prometheus alone."""


class Exporters(socketserver.ThreadingTCPServer):
    """Those of all nodes, by path, on one port, until the context is left."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__((LOOPBACK, 0), Scrapes)
        self.scrapes: Counter[bytes] = Counter()
        self.counted = threading.Lock()
        self.question_bytes = self.answer_bytes = 0

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *reason: object) -> None:
        self.shutdown()
        self.server_close()

    @property
    def port(self) -> int:
        """Where they all are."""
        return int(self.server_address[1])

    def counts(self) -> tuple[int, int, Counter[bytes]]:
        """Bytes of questions, of answers, and how often each node was scraped."""
        with self.counted:
            return self.question_bytes, self.answer_bytes, self.scrapes.copy()


class Scrapes(socketserver.StreamRequestHandler):
    """A connection of Prometheus'. Answers are as short as those of the usual libraries, or shorter."""

    server: Exporters

    def handle(self) -> None:
        while line := self.rfile.readline():
            size, path = len(line), line.split()[1]
            while (header := self.rfile.readline()).strip():
                size += len(header)
            answer = _answer()
            with self.server.counted:
                self.server.scrapes[path] += 1
                self.server.question_bytes += size + len(header)
                self.server.answer_bytes += len(answer)
            self.wfile.write(answer)


def _answer() -> bytes:
    counted = processor(Path("/proc/stat").read_text())
    busy, idle = (counted[name, ""] for name in ("cpu_busy", "cpu_idle"))
    body = f"# HELP cpu Share of all cores that is busy.\n# TYPE cpu gauge\ncpu {busy / (busy + idle)}\n"
    date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())
    head = f"Content-Type: text/plain; version=0.0.4; charset=utf-8\r\nDate: {date}\r\nContent-Length: {len(body)}"
    return f"HTTP/1.1 200 OK\r\n{head}\r\n\r\n{body}".encode()


def scrape(program: str, folder: Path, nodes: int, interval_s: int, seconds: float) -> Scraped:
    """Have all nodes scraped for so long. Raises `BenchFailure` when one was not, each time."""
    with Exporters() as exporters, Children() as children, (folder / "prometheus.log").open("wb") as log:
        [port] = free_ports(1)
        config, series, address = folder / "prometheus.yml", folder / "series", f"{LOOPBACK}:{port}"
        config.write_text(json.dumps(_config(nodes, exporters.port, interval_s)))
        words = [f"--config.file={config}", f"--storage.tsdb.path={series}", f"--web.listen-address={address}"]
        process = children.start([program, *words], stdout=log, stderr=log)
        wait_until(lambda: len(exporters.scrapes) == nodes, START_S, "Prometheus has scraped every node")
        before, used_s, began = exporters.counts(), cpu_s(process.pid), time.monotonic()
        time.sleep(seconds)
        after, elapsed_s = exporters.counts(), time.monotonic() - began
        used_s = cpu_s(process.pid) - used_s
        scraped = [after[2][path] - before[2][path] for path in after[2]]
        if min(scraped) < int(elapsed_s / interval_s) - 1 or _up(address) != nodes:
            raise BenchFailure(f"Prometheus does not scrape every node each {interval_s} s: {sorted(scraped)}")
    return Scraped((after[1] - before[1]) / elapsed_s, (after[0] - before[0]) / elapsed_s, used_s / elapsed_s)


def _config(nodes: int, port: int, interval_s: int) -> dict[str, Any]:
    """JSON is YAML."""
    targets = [
        {"targets": [f"{LOOPBACK}:{port}"], "labels": {"__metrics_path__": f"/{node}", "node": str(node)}}
        for node in range(nodes)
    ]
    return {
        "global": {"scrape_interval": f"{interval_s}s", "scrape_timeout": f"{interval_s}s"},
        "scrape_configs": [{"job_name": "cpu", "static_configs": targets}],
    }


def _up(address: str) -> int:
    """How many nodes Prometheus takes for scraped."""
    with urllib.request.urlopen(f"http://{address}/api/v1/query?query={UP}", timeout=START_S) as answer:
        found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return int(found[0]["value"][1]) if found else 0

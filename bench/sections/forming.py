"""What simulating the overlay costs: rings that form, and nodes that come and go, in processor time."""

from __future__ import annotations

from typing import Any, Final

from bench.measure import Bench, at_most
from bench.processes import Children, Conversation

CHURNED_NODES: Final = 1000
SESSION_MEDIAN_S: Final = 3600.0
HOUR_S: Final = 3600.0
CHURN_HOUR_AIM_S: Final = 150.0
TIMEOUT_S: Final = 1800.0


def run(bench: Bench) -> None:
    """One ring of each size, each in a process of its own; then churn in the one of `CHURNED_NODES`."""
    for nodes in bench.scale.of((500, CHURNED_NODES, 2000), (500, CHURNED_NODES), (8,)):
        with Children() as children:
            bench.progress(f"a ring of {nodes:,} nodes")
            worker = Conversation(children, "bench.simulated", [str(nodes)])
            formed = worker.ask("form", timeout_s=TIMEOUT_S)
            _forming_rows(bench, nodes, formed)
            if nodes == CHURNED_NODES or nodes < 100:
                duration_s = bench.scale.of(HOUR_S, 300.0, 10.0)
                bench.progress(f"{duration_s:,.0f} s of churn")
                asked = {"duration_s": duration_s, "session_median_s": SESSION_MEDIAN_S}
                _churn_row(bench, nodes, duration_s, worker.ask("churn", timeout_s=TIMEOUT_S, **asked))
            worker.finish()


def _forming_rows(bench: Bench, nodes: int, formed: dict[str, Any]) -> None:
    frames, cpu_s = formed["messages"], formed["cpu_s"]
    note = f"{frames:,} frames, {formed['events']:,} events"
    bench.row(f"{nodes:,} nodes form, processor time", "s", [cpu_s], note=note)
    bench.row(f"{nodes:,} nodes, frames a processor second", "1/s", [frames / cpu_s])
    bench.row(f"{nodes:,} nodes, memory a node", "KiB", [formed["node_kib"]])


def _churn_row(bench: Bench, nodes: int, duration_s: float, churned: dict[str, Any]) -> None:
    note = f"median session 1 h; {churned['messages']:,} frames in {duration_s:,.0f} s, scaled to the hour"
    hour_s = churned["cpu_s"] * HOUR_S / duration_s
    aim = at_most(CHURN_HOUR_AIM_S) if nodes == CHURNED_NODES else None
    bench.row(f"{nodes:,} nodes, an hour of churn, processor time", "s", [hour_s], aim, note)

"""The sections, in the order of the table."""

from __future__ import annotations

from typing import Final

from bench.measure import Section
from bench.sections import (
    aggregation,
    analyze,
    control,
    documents,
    events,
    filter as filter_,
    forming,
    links,
    matching,
    measurement,
    micro,
    pubsub,
    rest,
    simulator,
    streams,
    swap,
    sweep,
    telemetry,
    xpath,
)

SECTIONS: Final[tuple[Section, ...]] = (
    Section("micro", "building blocks, one process", micro.run),
    Section("filter", "matching 10,000 filters, beside a loop and a numpy scan", filter_.run),
    Section("matching", "a leaf of publish/subscribe with up to 50,000 subscriptions, beside a loop", matching.run),
    Section("xpath", "up to 1,000 XPath queries on a document, beside lxml one by one", xpath.run),
    Section("swap", "64 MiB both ways between two daemons, beside iperf3", swap.run),
    Section("control", "small control messages between two daemons, beside msgpack", control.run),
    Section("simulator", "1,000 simulated nodes, beside a bare heap", simulator.run),
    Section("forming", "rings of simulated nodes that form, and an hour of churn", forming.run),
    Section("rest", "a daemon at rest; 32 daemons up", rest.run),
    Section("pubsub", "1,000 subscriptions by content on 32 daemons, beside NATS and Mosquitto", pubsub.run),
    Section("events", "what one event costs from a publisher to its subscribers", events.run),
    Section("telemetry", "what event logs cost busy daemons, also where a sink keeps nothing", telemetry.run),
    Section("streams", "XML documents to 32 daemons that want a fifth each, beside NATS and Mosquitto", streams.run),
    Section("documents", "a file to 16 daemons behind slow links, beside one link's time", documents.run),
    Section("measurement", "values of 32 daemons for 100 clients, beside a Prometheus that scrapes", measurement.run),
    Section("analyze", "the Spark job over millions of events, beside Spark's own typed read", analyze.run),
    Section("sweep", "64 simulations as tasks of Spark, beside the same without", sweep.run),
    Section("aggregation", "1 MiB of counters a node on 8 to 32 daemons, beside MPI Allreduce", aggregation.run),
    Section(
        "links", "1 MiB of counters a node on 16 daemons behind slow links, beside one that fetches all", links.run
    ),
)

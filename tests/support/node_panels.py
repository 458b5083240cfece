"""Panels of the Grafana dashboard about what every daemon has: its ring, its links, its clients, its process."""

from __future__ import annotations

from typing import Final

from peerd.models.panels import a_second, panel

PANELS: Final = (
    panel(
        "Members missing",
        "short",
        {"{{instance}}": "peerd_members_missing"},
        "Members that a node expects and does not have. Above 0 answers are partial until they are back or forgotten.",
    ),
    panel(
        "In the ring",
        "short",
        {
            "ready": "sum(peerd_ring_ready)",
            "serving (lease held)": "sum(peerd_overlay_lease_held)",
            "suspecting a partition": "sum(peerd_overlay_partition_suspected)",
            "estimated size": "avg(peerd_ring_estimated_nodes)",
        },
        "Nodes by state, beside how many the nodes themselves think there are.",
    ),
    panel(
        "Leaf sets",
        "short",
        {"{{instance}}": "peerd_leaf_set_members"},
        "Neighbours of each node: 16, or all others in a ring of up to 17.",
    ),
    panel(
        "Links closed",
        "cps",
        {"{{reason}}": a_second("peerd_links_closed_total", by="reason")},
        "Control links that ended a second, by reason.",
    ),
    panel(
        "Refused and misbehaving",
        "cps",
        {
            "connection: {{reason}}": a_second("peerd_connections_refused_total", by="reason"),
            "misbehaviour: {{reason}}": a_second("peerd_peer_misbehaviour_total", by="reason"),
        },
        "Connections refused, and misbehaviour of peers, a second.",
    ),
    panel(
        "Frames dropped",
        "cps",
        {"{{reason}}": a_second("peerd_frames_dropped_total", by="reason")},
        "Messages that did not fit into the queue of a slow link.",
    ),
    panel(
        "Dropped at slow readers",
        "cps",
        {
            "streams: {{reason}}": a_second("peerd_dissemination_reader_drops_total", by="reason"),
            "publish/subscribe: {{reason}}": a_second("peerd_pubsub_dropped_total", by="reason"),
        },
        "What clients did not get because they read too slowly. Each gap is also marked at the reader.",
    ),
    panel(
        "Clients refused",
        "cps",
        {"{{listener}}: {{reason}}": a_second("peerd_http_refused_total", by="listener, reason")},
        "Requests that were not let in a second: limits, tokens, rights.",
    ),
    panel(
        "Event loop",
        "s",
        {"{{instance}}": "peerd_event_loop_lag_seconds"},
        "How late a daemon runs its timers. Above 5 s /livez fails.",
    ),
    panel(
        "Memory",
        "bytes",
        {"{{instance}}": "process_resident_memory_bytes"},
        "Resident memory of each daemon.",
    ),
    panel(
        "Processor",
        "percentunit",
        {"{{instance}}": a_second("process_cpu_seconds_total", by="instance")},
        "Share of one core.",
    ),
    panel(
        "Open files",
        "short",
        {"{{instance}}": "process_open_fds"},
        "File descriptors: links, clients, logs.",
    ),
)

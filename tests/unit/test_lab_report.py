"""Pages of what was measured."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from pathlib import Path

import pytest

from peerd.cli.main import main
from peerd.cli.options import seed_range
from peerd.errors import ConfigError, Unavailable
from peerd.lab.experiment import Row
from peerd.lab.grid import parse_grid, sweep_command, sweep_points
from peerd.lab.registry import CORE, experiments
from peerd.lab.store import ResultStore
from peerd.report.experiments import make_pages, write_pages
from protocols.dissemination.front.lab.claims import CODD_SAYS, ZHOU_SAYS
from protocols.measurement.front.lab.claims import PAPER_SAYS
from protocols.pubsub.front.lab.claims import LI_SAYS

SAID = (CODD_SAYS, ZHOU_SAYS, PAPER_SAYS, LI_SAYS)
HOPS = CORE["overlay/hops"]
ROWS: list[Row] = [
    {
        "nodes": nodes,
        "topology": "flat",
        "seed": seed,
        "lookups": 10,
        "hops_mean": 1.5,
        "control_per_s": 0.25,
        "hops_shares": [0.5, 0.5],
        "simulated_s": 1800.0,
        "processor_s": 36.0,
        "failure": None,
    }
    for nodes in (100, 300)
    for seed in (4, 5)
]


def test_a_page_has_the_table_the_pictures_and_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ResultStore(tmp_path / HOPS.name).finish(HOPS, {**asdict(HOPS.full), "seed": 4, "seeds": 2}, ROWS)
    assert main(["lab", "report", str(tmp_path), "-o", "json"]) == 0
    files = [Path(each) for each in json.loads(capsys.readouterr().out)["files"]]
    assert [file.name for file in files] == ["overlay.html", "overlay.md", "overlay.json"]
    html, markdown, data = (file.read_text() for file in files)
    assert "<h2" in html and HOPS.title in html and "100" in html
    assert (
        "4 simulations. 2 seeds: 4 to 5." in markdown
        and "| 300 |" in markdown
        and "| 0.25 |" in markdown
        and "0.25 s" not in markdown
        and "hops_shares" not in markdown
    )
    facts = json.loads(data)
    assert facts["facts"]["simulations"] == "4" and facts["facts"]["simulated"] == "2.0 hours"
    assert facts["sections"][HOPS.name]["rows"] == ROWS


def test_what_a_paper_says_is_beside_what_we_measured(tmp_path: Path) -> None:
    known = experiments()
    assert {name for said in SAID for name in said} <= known.keys()
    assert all(known[name].paper == text for said in SAID for name, text in said.items())
    measured = known["pubsub/delivery"]
    ResultStore(tmp_path / measured.name).finish(measured, asdict(measured.full), [{**ROWS[0], "seed": 1}])
    page = make_pages(tmp_path)["pubsub"].as_markdown()
    assert "The paper says: with 1,000 nodes 333 ms in the mean," in page and "We measured: 1 simulation." in page


def test_the_command_on_the_page_measures_the_same_points() -> None:
    settings = {**asdict(HOPS.full), "seed": 4, "seeds": 2}
    for told in (settings, json.loads(json.dumps(settings))):
        words = shlex.split(sweep_command(HOPS, told))
        options = zip(words[4::2], words[5::2], strict=True)
        grid = parse_grid([text for option, text in options if option == "--grid"], HOPS)
        points = sweep_points(HOPS, HOPS.quick, grid, seed_range(words[-1], 10))
        assert {point.digest for point in points} == {
            point.digest for point in sweep_points(HOPS, HOPS.full, {}, range(4, 6))
        }
    swept = {"grid": {"nodes": [4, 6], "duration": [5.0]}, "seeds": "0:2", "quick": True}
    assert sweep_command(HOPS, swept) == (
        "peerd lab sweep overlay/hops --grid nodes=4,6 --grid duration=5.0s --seeds 0:2 --quick"
    )


def test_where_there_are_no_results_or_damaged_ones_it_is_said(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="there are no results"):
        make_pages(tmp_path)
    file = tmp_path / HOPS.name / "results.json"
    file.parent.mkdir(parents=True)
    for damaged in ("{", "[]", '{"rows": [1]}', '{"rows": 1}'):
        file.write_text(damaged)
        with pytest.raises(ConfigError, match="no results of peerd lab"):
            write_pages(tmp_path)
    assert main(["lab", "report", str(tmp_path / "nowhere")]) == 69

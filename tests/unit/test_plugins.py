"""The one loader: what it refuses, that it says whose it is, and that the command line works on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import structlog
from fastapi import APIRouter, FastAPI

from peerd import messages
from peerd.cli.cluster import _settings as cluster_settings
from peerd.cli.main import main
from peerd.client import Client
from peerd.config import PeerdConfig
from peerd.daemon.admin.plugins import add_router
from peerd.entry_points import CLIENT_NAMES, CONFIGURATION_TABLES
from peerd.errors import ConfigError
from peerd.front import Front
from peerd.lab.registry import CORE, experiments
from peerd.plugins import find_events, find_fronts, find_plugins, gather, load_front, usable_fronts
from peerd.sim.checkers import BY_NAME
from peerd.sim.plugin_checkers import checkers_by_name
from peerd.sim.simulation import Simulation
from tests.support.fake_daemon import LOCAL_OPERATOR, FakeDaemon
from tests.support.installed import install

PLUGIN = """
from peerd.api import Plugin, handles
from peerd.messages import Message, message
from peerd.telemetry.schema import Event, Text


@message(0x7F71, bytes_max=64)
class Shout(Message):
    text: str


class Shouted(Event):
    KIND = "stranger.shouted"
    loudness: float


class Stranger(Plugin):
    name = "stranger"
    messages = (Shout,)
    events = (Shouted,)

    @handles(Shout)
    def on_shout(self, shout, source):
        self.host.emit(Shouted(loudness=1.0))
"""

FRONT = """
from peerd.front import Front, NodeOption


class StrangerFront(Front):
    name = "stranger"

    def router(self, service):
        from fastapi import APIRouter

        routes = APIRouter()

        @routes.get("/stranger")
        async def state() -> dict[str, str]:
            return {"name": service.name}

        return routes

    def operator_router(self, service):
        from fastapi import APIRouter

        routes = APIRouter()
        routes.add_api_route("/stranger/reset", lambda: {"done": True}, methods=["POST"])
        return routes

    def client(self, client):
        return [client]

    def commands(self):
        return {"shout": lambda: shout, "siren": group}

    def init_options(self):
        return [NodeOption("--loudness", "N", "How loud.", lambda text: {"loudness": float(text)})]


def shout() -> None:
    '''Say something.'''
    print("hey")


def group():
    import typer

    app = typer.Typer(help="Streams.")

    @app.command()
    def create(name: str) -> None:
        '''Make one.'''
        print(f"created {name}")

    @app.command()
    def remove(name: str) -> None:
        '''End one.'''

    return app
"""


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A third party's plugin with a front."""
    return install(
        tmp_path,
        monkeypatch,
        {"stranger_plugin": PLUGIN, "stranger_front": FRONT},
        plugins={"stranger": "stranger_plugin:Stranger"},
        fronts={"stranger": "stranger_front:StrangerFront"},
    )


# What is found


def test_a_plugin_of_others_is_found_with_its_front(stranger: Path) -> None:
    assert "stranger" in find_plugins()
    assert "stranger.shouted" in find_events()
    assert find_fronts()["stranger"].name == "stranger"


def test_a_plugin_without_a_front_is_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, {"stranger_plugin": PLUGIN}, plugins={"stranger": "stranger_plugin:Stranger"})
    assert "stranger" in find_plugins() and "stranger" not in find_fronts()
    assert type(load_front("stranger")) is Front


def test_every_built_in_plugin_has_a_reserved_name() -> None:
    simulation = Simulation(0)
    (place,) = simulation.start(1)
    simulation.run_for(1.0)
    assert {"overlay", "records"} == set(place.node.plugins)
    assert set(place.node.plugins) | {"swap", "node"} <= set(PeerdConfig.model_fields)


async def test_routes_and_the_client_of_a_plugin(stranger: Path) -> None:
    daemon = FakeDaemon({"stranger": find_plugins()["stranger"]()})
    async with daemon.http(caller=LOCAL_OPERATOR) as http:
        assert (await http.get("/v1/stranger")).json() == {"name": "stranger"}
        assert (await http.post("/v1/stranger/reset")).json() == {"done": True}
    async with daemon.client() as client:
        assert client.stranger == [client]


@pytest.mark.parametrize(
    ("before", "after"),
    [('@routes.get("/stranger")', '@routes.get("/status")'), ("routes = APIRouter()", "routes = 1 / 0")],
)
async def test_routes_that_cannot_be_used_leave_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str
) -> None:
    install(
        tmp_path,
        monkeypatch,
        {"stranger_plugin": PLUGIN, "stranger_front": FRONT.replace(before, after)},
        plugins={"stranger": "stranger_plugin:Stranger"},
        fronts={"stranger": "stranger_front:StrangerFront"},
    )
    daemon = FakeDaemon({"stranger": find_plugins()["stranger"]()})
    with structlog.testing.capture_logs() as logs:
        async with daemon.http() as http:
            assert (await http.get("/v1/status")).json()["is_ready"]
            assert (await http.get("/v1/stranger")).status_code == 404
    (told,) = [entry for entry in logs if entry["event"] == "front.unusable"]
    assert told["plugin"] == "stranger" and ("GET /v1/status" in told["error"] or "ZeroDivision" in told["error"])


async def test_a_route_that_an_included_router_has_already_is_taken() -> None:
    inner, outer, second = APIRouter(), APIRouter(prefix="/a"), APIRouter(prefix="/a")
    inner.add_api_route("/b", lambda: "first", methods=["GET"])
    outer.include_router(inner, prefix="/x")
    second.add_api_route("/x/b", lambda: "second", methods=["GET"])
    app = FastAPI()
    add_router(app, "one", outer)
    with structlog.testing.capture_logs() as logs:
        add_router(app, "two", second)
    [told] = logs
    assert (told["event"], told["plugin"]) == ("front.unusable", "two")
    assert "GET /v1/a/x/b" in told["error"]


async def test_the_client_says_what_it_has_not(stranger: Path) -> None:
    async with Client("nowhere.sock") as client:
        assert client.stranger == [client]
        with pytest.raises(AttributeError, match=r"no plugin of this name .*did you mean .stranger"):
            _ = client.strange
        assert not hasattr(client, "_private")


def test_commands_and_groups_of_commands(stranger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shout"]) == 0
    assert main(["siren", "create", "alarms"]) == 0
    assert capsys.readouterr().out == "hey\ncreated alarms\n"
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert "\n  shout " in out and "\n  siren " in out


def test_options_of_a_plugin_become_its_settings(
    stranger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "peerd.cli.init", raising=False)  # a process asks for options once
    assert main(["init", "--help"]) == 0
    assert "--loudness N" in capsys.readouterr().out
    assert main(["init", "--dir", str(tmp_path / "node"), "--loudness", "loud"]) == 2
    assert "--loudness" in capsys.readouterr().err
    assert main(["init", "--dir", str(tmp_path / "node"), "--loudness", "11"]) == 78
    assert "protocols.stranger.loudness" in capsys.readouterr().err


def test_options_for_many_nodes_have_each_nodes_number() -> None:
    (data,) = load_front("aggregation").cluster_options()
    flags = {f"protocols.aggregation.{key}": value for key, value in data.settings("/data").items()}
    of_node = cluster_settings(["protocols.aggregation.deadline={n}s"], flags, 4)
    assert of_node is not None
    assert of_node(2)["protocols"]["aggregation"] == {"data_root": "/data", "share": "2/4", "deadline": "4s"}
    assert cluster_settings([], {}, 4) is None


# What is refused


def test_the_names_that_are_taken_are_known() -> None:
    assert set(PeerdConfig.model_fields) == CONFIGURATION_TABLES
    own = {name for name in dir(Client("/nowhere")) if not name.startswith("_")}
    assert own == CLIENT_NAMES


WRONG = {
    "a part of the core's name": (
        {"records": "stranger_plugin:Stranger"},
        PLUGIN,
        r"protocols\.records: .*cannot be called 'records': a part of peerd",
    ),
    "the name of one of the client's methods": (
        {"status": "stranger_plugin:Stranger"},
        PLUGIN,
        r"protocols\.status: .*cannot be called 'status': the Python client has a method of that name",
    ),
    "not a name": ({"Loud": "stranger_plugin:Stranger"}, PLUGIN, r"protocols\.Loud: .*a name must match"),
    "another's name": ({"loud": "stranger_plugin:Stranger"}, PLUGIN, r"protocols\.loud: .*calls itself 'stranger'"),
    "no plugin": ({"stranger": "stranger_plugin:Shout"}, PLUGIN, r"protocols\.stranger: .*not a subclass"),
    "broken": ({"stranger": "stranger_plugin:Stranger"}, "1 / 0", r"protocols\.stranger: .*ZeroDivisionError"),
    "the kernel's type id": (
        {"stranger": "stranger_plugin:Stranger"},
        PLUGIN.replace("0x7F71", "0x00F7"),
        r"protocols\.stranger: its message Shout has the type id 0x00f7; those below 0x0100",
    ),
    "a type id that is taken": (
        {"stranger": "stranger_plugin:Stranger"},
        PLUGIN.replace("0x7F71", "0x0100"),
        r"protocols\.stranger: .*type id 0x0100 is",
    ),
    "an event with another's name": (
        {"stranger": "stranger_plugin:Stranger"},
        PLUGIN.replace("stranger.shouted", "overlay.shouted"),
        r"protocols\.stranger: its event overlay\.shouted must be called stranger\.",
    ),
    "a metric with another's name": (
        {"stranger": "stranger_plugin:Stranger"},
        PLUGIN.replace(
            "    events =", "    metrics = (Metric('peerd_links', 'gauge', 'Links.'),)\n    events ="
        ).replace("import Plugin, handles", "import Metric, Plugin, handles"),
        r"protocols\.stranger: its metric peerd_links must be called peerd_stranger_",
    ),
    "a field with two types": (
        {"stranger": "stranger_plugin:Stranger"},
        PLUGIN.replace("loudness: float", "peer: float"),
        r"protocols\.stranger: the field peer is float in the event stranger\.shouted and str in link\.up",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_bad_plugin_is_refused_by_name(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugins, source, offence = WRONG[case]
    find_plugins()  # those in the tree come first, as in any process
    monkeypatch.setattr(messages, "_registry", dict(messages._registry))  # what is declared here must not stay
    install(tmp_path, monkeypatch, {"stranger_plugin": source}, plugins=plugins)
    with pytest.raises(ConfigError, match=offence):
        find_plugins()


def test_a_front_without_its_plugin_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fronts = {"stranger": "stranger_front:StrangerFront"}
    install(tmp_path, monkeypatch, {"stranger_front": FRONT}, plugins={}, fronts=fronts)
    with pytest.raises(ConfigError, match=r"protocols\.stranger: there is a front in peerd\.fronts, and no plugin"):
        find_fronts()
    told: list[ConfigError] = []
    assert "stranger" not in usable_fronts(told.append) and len(told) == 1


def test_two_plugins_of_one_name_are_refused(stranger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "two", monkeypatch, {"other_plugin": PLUGIN}, plugins={"stranger": "other_plugin:Stranger"})
    other = tmp_path / "two" / "site"
    (other / "stranger-1.0.dist-info").rename(other / "other-1.0.dist-info")
    (other / "other-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    with pytest.raises(ConfigError, match=r"protocols\.stranger: two installed plugins have this name: other_plugin"):
        find_plugins()


def test_two_pieces_of_one_name_are_refused() -> None:
    class Loud(Front):
        name = "loud"

    fronts = {"loud": Loud(), "louder": Loud()}
    with pytest.raises(ConfigError, match=r"protocols\.louder: its checker 'x' cannot be used: the plugin loud has it"):
        gather(fronts, "checker", lambda front: [("x", 1)])
    with pytest.raises(ConfigError, match=r"protocols\.loud: its checker 'x' cannot be used: peerd itself has it"):
        gather(fronts, "checker", lambda front: [("x", 1)], taken=["x"])
    told: list[ConfigError] = []
    assert gather(fronts, "checker", lambda front: [("x", 1)], warn=told.append) == {"x": 1} and len(told) == 1


# The command line without a plugin that it cannot load


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A plugin whose kernel part and front cannot be imported."""
    modules = {"stranger_plugin": "import nowhere_to_be_found", "stranger_front": "raise RuntimeError('bad day')"}
    plugins, fronts = {"stranger": "stranger_plugin:Stranger"}, {"stranger": "stranger_front:StrangerFront"}
    return install(tmp_path, monkeypatch, modules, plugins=plugins, fronts=fronts)


@pytest.mark.parametrize("arguments", [["--help"], ["version"], ["aggregate", "--help"], ["cluster", "--help"]])
def test_built_in_commands_work_beside_a_broken_plugin(
    broken: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 0
    captured = capsys.readouterr()
    assert captured.out
    if arguments[0] not in ("version", "cluster"):
        assert "protocols.stranger: the plugin stranger_front" in captured.err and "bad day" in captured.err


def test_a_broken_plugin_is_named_where_it_is_needed(broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check"]) == 78
    assert "protocols.stranger: the plugin stranger_plugin:Stranger cannot be imported" in capsys.readouterr().err


def test_a_command_that_is_taken_costs_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    front = FRONT.replace('"shout":', '"status":')
    install(
        tmp_path,
        monkeypatch,
        {"stranger_plugin": PLUGIN, "stranger_front": front},
        plugins={"stranger": "stranger_plugin:Stranger"},
        fronts={"stranger": "stranger_front:StrangerFront"},
    )
    assert main(["siren", "create", "alarms"]) == 0
    captured = capsys.readouterr()
    assert "its command 'status' cannot be used: peerd itself has it" in captured.err
    assert captured.out == "created alarms\n"


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ('return {"shout"', 'return {"shout": 1 / 0, "shouted"', "its command fails: ZeroDivisionError"),
        ('lambda: shout, "siren"', 'lambda: 1 / 0, "siren"', "its command 'shout' fails: ZeroDivisionError"),
        (
            '    name = "stranger"',
            '    name = "stranger"\n\n    def __init__(self):\n        1 / 0',
            "its front fails: Zero",
        ),
        ('return {"shout"', 'raise SystemExit(5)\n        return {"shout"', "its command fails: SystemExit: 5"),
        (
            "class StrangerFront",
            "raise SystemExit(5)\nclass StrangerFront",
            "the plugin stranger_front:StrangerFront cannot be imported: SystemExit",
        ),
    ],
)
def test_help_works_beside_a_front_that_fails(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    before: str,
    after: str,
    told: str,
) -> None:
    assert before in FRONT
    install(
        tmp_path,
        monkeypatch,
        {"stranger_plugin": PLUGIN, "stranger_front": FRONT.replace(before, after)},
        plugins={"stranger": "stranger_plugin:Stranger"},
        fronts={"stranger": "stranger_front:StrangerFront"},
    )
    assert main(["--help"]) == 0
    captured = capsys.readouterr()
    assert f"peerd: warning: protocols.stranger: {told}" in captured.err
    assert "\n  aggregate " in captured.out and "\n  status " in captured.out
    assert "\n  shout " not in captured.out


@pytest.mark.parametrize("arguments", [["init", "--help"], ["cluster", "up", "--help"]])
def test_help_works_beside_a_front_whose_options_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    front = (
        "from peerd.front import Front\n\n\nclass StrangerFront(Front):\n    name = 'stranger'\n\n"
        "    def init_options(self):\n        1 / 0\n\n    def cluster_options(self):\n        1 / 0\n"
    )
    install(
        tmp_path,
        monkeypatch,
        {"stranger_plugin": PLUGIN, "stranger_front": front},
        plugins={"stranger": "stranger_plugin:Stranger"},
        fronts={"stranger": "stranger_front:StrangerFront"},
    )
    for module in ("init", "join", "cluster"):  # their options are gathered when they are imported
        monkeypatch.delitem(sys.modules, f"peerd.cli.{module}", raising=False)
    assert main(arguments) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("peerd: warning: protocols.stranger: its option fails: ZeroDivisionError")
    assert "Usage: peerd" in captured.out


# Simulator and lab

PARTS = """
from dataclasses import replace
from peerd.front import Front
from peerd.lab.overlay.hops import EXPERIMENTS
from peerd.sim.checkers import Checker


class Silent(Checker):
    pass


class StrangerFront(Front):
    name = "stranger"

    def checkers(self):
        return {CHECKER: Silent}

    def experiments(self):
        return [replace(EXPERIMENTS[0], name=EXPERIMENT)]
"""


@pytest.mark.parametrize(
    ("checker", "experiment", "offence"),
    [
        ("silence", "stranger/hops", ""),
        ("ring", "stranger/hops", r"its checker 'ring' cannot be used"),
    ],
)
def test_checkers_and_experiments_of_a_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checker: str, experiment: str, offence: str
) -> None:
    source = f"CHECKER, EXPERIMENT = {checker!r}, {experiment!r}\n{PARTS}"
    install(
        tmp_path,
        monkeypatch,
        {"stranger_plugin": PLUGIN, "stranger_front": source},
        plugins={"stranger": "stranger_plugin:Stranger"},
        fronts={"stranger": "stranger_front:StrangerFront"},
    )
    if not offence:
        assert list(checkers_by_name())[: len(BY_NAME)] == list(BY_NAME) and checker in checkers_by_name()
        found = list(experiments())
        assert found[: len(CORE)] == list(CORE) and experiment in found[len(CORE) :]
        return
    with pytest.raises(ConfigError, match=offence):
        checkers_by_name()


@pytest.mark.parametrize(
    ("experiments_source", "told"),
    [
        (
            "return [replace(EXPERIMENTS[0], name='overlay/loudness')]",
            "its experiment 'overlay/loudness' cannot be used",
        ),
        ("raise RuntimeError('no disk')", "its experiment fails: RuntimeError: no disk"),
    ],
)
def test_an_experiment_that_cannot_be_used_does_not_hide_the_others(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    experiments_source: str,
    told: str,
) -> None:
    source = PARTS.replace("return [replace(EXPERIMENTS[0], name=EXPERIMENT)]", experiments_source)
    install(
        tmp_path,
        monkeypatch,
        {"stranger_plugin": PLUGIN, "stranger_front": source},
        plugins={"stranger": "stranger_plugin:Stranger"},
        fronts={"stranger": "stranger_front:StrangerFront"},
    )
    assert main(["lab", "list"]) == 0
    captured = capsys.readouterr()
    assert all(name in captured.out for name in CORE) and "loudness" not in captured.out
    assert captured.err.startswith(f"peerd: warning: protocols.stranger: {told}")

"""The built-in services are named in one list: whoever adds one adds it there, and nowhere else."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from peerd.errors import Bug
from peerd.node.services import SERVICES, make_services
from peerd.services.records.config import RecordsConfig

ROOT = Path(__file__).resolve().parents[2]

SECOND = """
from typing import Annotated, ClassVar

from pydantic import Field

from peerd.api import PluginConfig
from peerd.node import services
from peerd.quantities import setting
from peerd.services.service import Service


class SecondConfig(PluginConfig):
    size: Annotated[int, Field(ge=1)] = setting(3, "How large.")


class Second(Service):
    name: ClassVar[str] = "second"
    purpose: ClassVar[str] = "A service that only this test has."
    Config: ClassVar[type[PluginConfig]] = SecondConfig
    log: ClassVar[list[str]] = []

    def drain(self, done):
        self.log.append("drained")
        done()

    def stop(self):
        self.log.append("stopped")

    def plugin_disabled(self, name):
        self.log.append(f"{name} disabled")


services.SERVICES = (*services.SERVICES, Second)  # the one list

from peerd.api import Plugin
from peerd.config import PeerdConfig
from peerd.daemon.node_settings import node_settings
from peerd.ids import NodeId
from peerd.messages import PeerRef
from peerd.sim.runner import Runner
from peerd.sim.scenario import parse_scenario

config = PeerdConfig.model_validate({"second": {"size": 5}})
settings = node_settings(config, PeerRef(NodeId(1), "127.0.0.1", 7420), 1)
assert settings.services["second"].size == 5, "a daemon reads its table"
assert PeerdConfig.model_fields["second"].description == Second.purpose, "and documents it"

runner = Runner(parse_scenario({"nodes": 3, "second": {"size": 7}}), 0, None, None)
runner.run(lambda phase, now: None)
runner.simulation.run_for(5.0)
place = runner.simulation.nodes[1]
assert place.node.service(Second).config.size == 7, "a scenario sets it, and every node runs it"
place.node.disable_plugin("records")
place.node.drain(10.0, lambda unfinished: Second.log.append(f"left: {unfinished}"))
runner.simulation.run_for(5.0)
assert Second.log[:2] == ["records disabled", "drained"] and "stopped" in Second.log, Second.log
try:
    parse_scenario({"nodes": 1, "second": {"sise": 7}})
except Exception as error:
    assert 'unknown key, did you mean "size"?' in str(error), error
else:
    raise AssertionError("a misspelt key was taken")
print("fine")
"""


def test_a_second_service_touches_one_list() -> None:
    """Daemon, scenario and simulator know it: configured, started, told of plugins that fail, drained and stopped."""
    code = textwrap.dedent(SECOND)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "fine"), done.stderr


ALLOWED = {
    "peerd/node/services.py": "the list",
    "peerd/node/node.py": "typed access to the first, for hosts and tests",
    "peerd/node/host.py": "binds `Host.records`, which plugins see",
    "peerd/node/ports.py": "names what the record store calls plugins through",
}


def test_nothing_else_names_a_service() -> None:
    packages = tuple(f"peerd.services.{kind.name}" for kind in SERVICES)
    named: dict[str, str] = {}
    for path in sorted((ROOT / "peerd").rglob("*.py")):
        relative = path.relative_to(ROOT).as_posix()
        if relative.startswith("peerd/services/"):
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(packages):
                named[relative] = node.module or ""
    assert named.keys() == ALLOWED.keys()


def test_services_take_their_own_configuration_or_the_defaults() -> None:
    config = RecordsConfig(replicas=5)
    [given], [default] = make_services({"records": config}), make_services({})
    assert given.config is config and default.config == RecordsConfig()


def test_a_configuration_for_no_service_is_a_bug() -> None:
    with pytest.raises(Bug, match="no service is called rekords"):
        make_services({"rekords": RecordsConfig()})

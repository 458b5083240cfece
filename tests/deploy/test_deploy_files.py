"""The files under deploy/, the Dockerfile and the CI script say what they must; nothing is built or started."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from pydantic import BaseModel
from typer.testing import CliRunner

ROOT = Path(__file__).resolve().parent.parent.parent
UNIT = ROOT / "deploy/systemd/peerd.service"
COLLECTOR_UNIT = UNIT.with_name("peerd-sink.service")
COMPOSE = ROOT / "deploy/compose/compose.yaml"
DOCKERFILE = ROOT / "Dockerfile"
CI = ROOT / ".ci/run"
LOCK = ROOT / "requirements.lock"

EXPOSURE_MAX = 15
"""`systemd-analyze security` in tenths: 1.5."""

UNIT_DIRECTIVES = [
    "Type=notify",
    "ExecStart=/usr/bin/peerd run --config /etc/peerd/peerd.toml",
    "RestartPreventExitStatus=77 78",
    "ExecReload=/usr/bin/peerd reload",
    "KillSignal=SIGTERM",
    "KillMode=mixed",
    "WatchdogSec=30",
    "LimitCORE=0",
    "User=peerd",
    "StateDirectory=peerd",
    "StateDirectoryMode=0700",
    "RuntimeDirectory=peerd",
    "LogsDirectory=peerd",
    "ConfigurationDirectory=peerd",
    "NoNewPrivileges=yes",
    "CapabilityBoundingSet=",
    "AmbientCapabilities=",
    "RestrictSUIDSGID=yes",
    "LockPersonality=yes",
    "RestrictRealtime=yes",
    "ProtectSystem=strict",
    "ProtectHome=yes",
    "PrivateTmp=yes",
    "PrivateDevices=yes",
    "PrivateUsers=yes",
    "RemoveIPC=yes",
    "ProtectProc=invisible",
    "ProtectClock=yes",
    "ProtectHostname=yes",
    "ProtectControlGroups=yes",
    "ProtectKernelLogs=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelTunables=yes",
    "RestrictNamespaces=yes",
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6",
    "MemoryDenyWriteExecute=yes",
    "SystemCallArchitectures=native",
    "SystemCallFilter=@system-service",
    "SystemCallFilter=~@privileged @resources",
    "SystemCallFilter=setrlimit prlimit64 setpriority",
    "OOMPolicy=continue",
    "SystemCallErrorNumber=EPERM",
    "UMask=0077",
]


def settings_of(path: Path) -> list[str]:
    """The lines of a unit file without comments, empty lines and section names."""
    lines = (line.strip() for line in path.read_text("utf-8").splitlines())
    return [line for line in lines if line and not line.startswith(("#", ";", "["))]


def value_of(key: str) -> str:
    """The one value of a key of the unit."""
    (value,) = (line.partition("=")[2] for line in settings_of(UNIT) if line.startswith(f"{key}="))
    return value


def instructions(stage: int = -1) -> list[tuple[str, str]]:
    """(instruction, arguments) of one stage of the Dockerfile, continuation lines joined; -1 is the last stage."""
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text("utf-8"), flags=re.MULTILINE).replace("\\\n", " ")
    words = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
    pairs = [(instruction.upper(), arguments.strip()) for instruction, arguments in words]
    starts = [index for index, (instruction, _) in enumerate(pairs) if instruction == "FROM"]
    return pairs[starts[stage] : ([*starts, len(pairs)])[stage % len(starts) + 1]]


def argument_of(instruction: str) -> str:
    """The arguments of the only such instruction in the last stage."""
    (arguments,) = (arguments for name, arguments in instructions() if name == instruction)
    return arguments


# --- systemd --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("directive", UNIT_DIRECTIVES)
def test_unit_has(directive: str) -> None:
    assert directive in settings_of(UNIT), f"{UNIT.name}: {directive} is missing"


def test_unit_bounds_what_the_daemon_may_use() -> None:
    assert 1024 <= int(value_of("LimitNOFILE")) <= 65536
    assert re.fullmatch(r"\d+[MG]", value_of("MemoryMax"))
    assert int(value_of("TasksMax")) > 0
    assert 10 <= int(value_of("TimeoutStopSec")) <= 90
    assert int(value_of("RestartSec")) > 0, "a daemon that fails at once must not spin"


def test_unit_waits_longer_than_the_daemon_does() -> None:
    """systemd must not kill a graceful stop that is within its own bound."""
    config = importlib.import_module("peerd.config").PeerdConfig()
    assert int(value_of("TimeoutStopSec")) > config.node.shutdown_timeout


def test_unit_directories_are_the_configured_ones() -> None:
    config = importlib.import_module("peerd.config").PeerdConfig()
    assert config.node.state_dir == f"/var/lib/{value_of('StateDirectory')}"
    assert str(Path(config.admin.socket).parent) == f"/run/{value_of('RuntimeDirectory')}"


def test_unit_does_not_retry_what_cannot_succeed() -> None:
    exit_code = importlib.import_module("peerd.errors").ExitCode
    expected = {exit_code.DUPLICATE_IDENTITY, exit_code.CONFIG}
    assert {int(code) for code in value_of("RestartPreventExitStatus").split()} == expected


def test_the_collector_is_as_shut_in_as_the_daemon() -> None:
    settings = settings_of(COLLECTOR_UNIT)
    of_the_daemon = UNIT_DIRECTIVES[UNIT_DIRECTIVES.index("NoNewPrivileges=yes") :]
    other = {"SystemCallFilter=setrlimit prlimit64 setpriority", "OOMPolicy=continue", "UMask=0077"}
    assert not set(of_the_daemon) - other - set(settings)
    (start,) = (line.partition("=")[2] for line in settings if line.startswith("ExecStart="))
    words = start.split()
    assert words[:3] == ["/usr/bin/peerd", "sink", "serve"]
    help_text = CliRunner().invoke(importlib.import_module("peerd.cli.sink").app, ["serve", "--help"]).output
    assert all(option in help_text for option in words if option.startswith("--"))
    assert f"/var/lib/{dict(line.split('=', 1) for line in settings)['StateDirectory']}" in words


@pytest.mark.parametrize("unit", [UNIT, COLLECTOR_UNIT], ids=lambda unit: unit.stem)
def test_unit_exposure_is_low(unit: Path) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("no systemd-analyze: the directives were checked one by one, their total score was not")
    command = [tool, "security", "--offline=true", f"--threshold={EXPOSURE_MAX}", "--no-pager", str(unit)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if "unrecognized option" in run.stderr:
        pytest.skip("systemd-analyze is older than 250 and has no --offline: the total score was not checked")
    assert run.returncode == 0, run.stdout + run.stderr


def test_user_and_directories_come_with_the_unit() -> None:
    user = value_of("User")
    accounts = settings_of(UNIT.with_name("peerd.sysusers.conf"))
    assert any(line.startswith(f"u {user} ") for line in accounts)
    lines = [line.split() for line in settings_of(UNIT.with_name("peerd.tmpfiles.conf"))]
    assert {line[1]: line[2] for line in lines} == {
        "/etc/peerd": "0750",
        "/var/lib/peerd": "0700",
        "/run/peerd-data": "2750",
    }
    [(owner, group)] = [(line[3], line[4]) for line in lines if line[1] == "/run/peerd-data"]
    assert owner == user and f"g {group} -" in accounts, "data clients have a group that is not the operators'"
    assert value_of("ReadWritePaths") == "-/run/peerd-data"


# --- paths in the docs ---------------------------------------------------------------------------------------------


PAGES = [ROOT / "docs/operating.md", ROOT / "deploy/README.md"]
DIRECTORIES = {
    "StateDirectory": "/var/lib",
    "RuntimeDirectory": "/run",
    "LogsDirectory": "/var/log",
}
"""What the unit lets the daemon write, by systemd.exec(5); ``ConfigurationDirectory=`` stays root's."""
WRITTEN = (
    r"peerd (?:init|join)\b.*--dir (\S+)",
    r"^\s*(?:#\s*)?(?:state_dir|socket|sink|ports_file) = \"([^\"]+)\"",
)
"""Where the docs have the daemon write: its identity and state, its sockets, its event log."""
READ = (
    r"(?:run --config|config check) (\S+)",
    r"^\s*(?:tls_certificate|tls_key|ca_file|cert_file|key_file) = \"([^\"]+)\"",
)


def writable() -> list[Path]:
    """The folders that the daemon may write under the unit."""
    own = [Path(place) / value_of(key) for key, place in DIRECTORIES.items()]
    return own + [Path(path.removeprefix("-")) for path in value_of("ReadWritePaths").split()]


def absolute_paths(pages: list[Path], patterns: tuple[str, ...]) -> list[tuple[str, Path]]:
    """(page, path) of every absolute path that one of these finds."""
    found = [
        (page.name, Path(text.rstrip(";,)")))
        for page in pages
        for pattern in patterns
        for text in re.findall(pattern, page.read_text("utf-8"), flags=re.MULTILINE)
    ]
    return [(name, path) for name, path in found if path.is_absolute()]


def unwritable(pages: list[Path]) -> list[tuple[str, Path]]:
    """What a page has the daemon write where the unit does not let it."""
    return [
        (name, path)
        for name, path in absolute_paths(pages, WRITTEN)
        if not any(path.is_relative_to(folder) for folder in writable())
    ]


def test_what_the_docs_have_the_daemon_write_it_may_write_under_the_unit() -> None:
    assert len(absolute_paths(PAGES, WRITTEN)) >= 5
    assert unwritable(PAGES) == []


def test_the_check_of_the_docs_bites(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text('peerd init --dir /etc/peerd --cluster prod\nsocket = "/run/peerd/x.sock"\n')
    assert unwritable([page]) == [("page.md", Path("/etc/peerd"))]


def test_what_the_docs_have_the_daemon_read_is_its_configuration_or_its_own() -> None:
    readable = [Path("/etc") / value_of("ConfigurationDirectory"), *writable()]
    found = absolute_paths(PAGES, READ)
    assert found and all(any(path.is_relative_to(folder) for folder in readable) for _, path in found), found
    [(owner, group, mode)] = [
        (words[3], words[4], words[2])
        for words in map(str.split, settings_of(UNIT.with_name("peerd.tmpfiles.conf")))
        if words[1] == str(readable[0])
    ]
    assert (owner, group) == ("root", value_of("Group")), "the daemon reads it as a member of the group"
    assert mode == value_of("ConfigurationDirectoryMode") == "0750"


def test_the_defaults_of_the_daemon_are_places_that_it_may_write_under_the_unit() -> None:
    config = importlib.import_module("peerd.config").PeerdConfig()
    for path in (config.node.state_dir, config.admin.socket, config.data_socket(), str(config.ca_dir())):
        assert any(Path(path).is_relative_to(folder) for folder in writable()), path


def test_the_unit_reloads_with_a_command_that_there_is() -> None:
    commands = importlib.import_module("peerd.cli.app").COMMANDS
    assert value_of("ExecReload").split()[1:] == ["reload"] and "reload" in commands


# --- container image ------------------------------------------------------------------------------------------------


def test_image_has_two_stages_and_the_last_one_builds_nothing() -> None:
    assert [name for name, _ in instructions(0)].count("FROM") == 1
    assert argument_of("COPY").startswith("--from=build ")
    assert not any("pip" in arguments for name, arguments in instructions() if name == "RUN")


def test_image_runs_as_a_numeric_user_who_is_not_root() -> None:
    assert re.fullmatch(r"(\d+):(\d+)", argument_of("USER")), "an orchestrator can only judge numbers"
    assert "0" not in argument_of("USER").split(":")


@pytest.mark.parametrize("instruction", ["ENTRYPOINT", "CMD", "HEALTHCHECK"])
def test_image_needs_no_shell(instruction: str) -> None:
    arguments = argument_of(instruction)
    command = json.loads(arguments[arguments.index("[") :])
    assert command and all(isinstance(word, str) for word in command)


def test_image_health_and_stop() -> None:
    assert argument_of("HEALTHCHECK").endswith('CMD ["peerd", "healthcheck"]')
    assert argument_of("STOPSIGNAL") == "SIGTERM"
    assert argument_of("EXPOSE") == "7420"


@pytest.mark.parametrize("label", ["title", "description", "version", "revision", "licenses"])
def test_image_is_labelled(label: str) -> None:
    assert f"org.opencontainers.image.{label}=" in argument_of("LABEL")


def test_images_are_pinned_to_a_version() -> None:
    images = re.findall(r"^ARG PYTHON_IMAGE=(.*)$", DOCKERFILE.read_text("utf-8"), flags=re.MULTILINE)
    assert images == ["python:3.12-slim"], "never `latest`"
    assert ":latest" not in COMPOSE.read_text("utf-8")


def test_build_context_is_a_list_of_what_may_enter() -> None:
    lines = settings_of(ROOT / ".dockerignore")
    assert lines[0] == "*", "keys and logs stay out unless named"
    copied = {word.strip("./") for name, words in instructions(0) if name == "COPY" for word in words.split()[:-1]}
    assert copied == {line.removeprefix("!") for line in lines if line.startswith("!")}


# --- compose --------------------------------------------------------------------------------------------------------


def test_compose_can_scale_and_starts_in_order() -> None:
    text = COMPOSE.read_text("utf-8")
    assert "container_name" not in text, "a fixed name forbids --scale"
    assert not re.search(r"^\s+ports:", text, flags=re.MULTILINE), "a published port forbids --scale"
    assert "condition: service_completed_successfully" in text and "condition: service_healthy" in text
    assert '["CMD", "peerd", "healthcheck"]' in text
    for line in ("read_only: true", "cap_drop: [ALL]", "no-new-privileges:true", "mem_limit:", "pids_limit:"):
        assert line in text, f"{COMPOSE.name}: {line} is missing"


TMPFS_OPTIONS = {"mode", "size", "rw", "ro", "exec", "noexec", "suid", "nosuid", "dev", "nodev"}
"""What both docker and podman take; docker knows uid= and gid=, too, and podman refuses them."""


def test_tmpfs_options_are_those_that_docker_and_podman_know() -> None:
    mounts = re.findall(r"^\s+- (/\S+:\S+=\S+)$", COMPOSE.read_text("utf-8"), flags=re.MULTILINE)
    mounts += re.findall(r"--tmpfs (\S+)", (ROOT / "deploy/README.md").read_text("utf-8"))
    assert len(mounts) >= 3
    for mount in mounts:
        options = {option.partition("=")[0] for option in mount.partition(":")[2].split(",")}
        assert options <= TMPFS_OPTIONS, f"{mount}: {', '.join(sorted(options - TMPFS_OPTIONS))}"


def test_the_container_s_user_may_write_its_run_folder() -> None:
    """An engine mounts a tmpfs for root; with this mode it does not matter who its owner is."""
    mounts = re.findall(
        r"(?:- |--tmpfs )/run/peerd:(\S+)", COMPOSE.read_text("utf-8") + (ROOT / "deploy/README.md").read_text("utf-8")
    )
    assert mounts and all("mode=1777" in options.split(",") for options in mounts)


def test_compose_parses() -> None:
    if importlib.util.find_spec("yaml") is None:
        pytest.skip("no YAML library: compose.yaml was checked as text only")
    services = importlib.import_module("yaml").safe_load(COMPOSE.read_text("utf-8"))
    assert set(services["services"]) == {"init", "seed", "peer"}
    assert set(services["volumes"]) == {"authority", "state"}
    assert services["services"]["peer"]["read_only"] is True
    assert services["services"]["init"]["restart"] == "no"


def test_environment_variables_in_deploy_files_are_settings() -> None:
    """A misspelt variable would end the daemon with exit code 78 on the operator's machine, so it fails here."""
    files = [path for path in (ROOT / "deploy").rglob("*") if path.is_file()]
    names = {name for path in [*files, DOCKERFILE] for name in re.findall(r"PEERD_[A-Z_]+__[A-Z_]+", path.read_text())}
    assert names > {"PEERD_NODE__LISTEN"}
    for name in sorted(names - {"PEERD_SECTION__KEY"}):
        model: type[BaseModel] | None = importlib.import_module("peerd.config").PeerdConfig
        for key in name.removeprefix("PEERD_").lower().split("__"):
            assert model is not None and key in model.model_fields, f"{name} is no setting"
            annotation = model.model_fields[key].annotation
            model = annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


# --- scripts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "shell"), [(CI, "bash"), (ROOT / "deploy/compose/node.sh", "sh")], ids=["ci", "node"])
def test_script_is_well_formed(path: Path, shell: str) -> None:
    assert path.read_text("utf-8").splitlines()[0].endswith(shell)
    run = subprocess.run([shell, "-n", str(path)], capture_output=True, text=True, timeout=30, check=False)
    assert (run.returncode, run.stderr) == (0, "")


def test_ci_script_runs_the_two_targets_and_can_be_executed() -> None:
    text = CI.read_text("utf-8")
    assert os.access(CI, os.X_OK)
    assert text.index("make lint") < text.index("make test")
    assert "set -euo pipefail" in text and "</dev/null" in text


def test_makefile_has_every_target() -> None:
    text = (ROOT / "Makefile").read_text("utf-8")
    for target in ("demo", "test", "lint", "bench", "test-long", "clean"):
        assert re.search(rf"^{target}:", text, flags=re.MULTILINE), f"Makefile: no target {target}"


# --- the lock file --------------------------------------------------------------------------------------------------


def test_the_lock_has_a_hash_for_everything_and_names_no_registry() -> None:
    text = LOCK.read_text("utf-8")
    pinned = re.findall(
        r"^([a-z0-9-]+)==[^ ]+(?: ; [^\\\n]+)? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", text, re.MULTILINE
    )
    assert len(pinned) == len(re.findall(r"^[a-z0-9]", text, re.MULTILINE)) > 30
    assert "://" not in text and "--index" not in text and "--find-links" not in text


def test_the_lock_has_every_dependency_of_the_daemon() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["filter"], *extras["mqtt"]]
    names = {re.split(r"[^A-Za-z0-9_-]", each, maxsplit=1)[0].lower() for each in wanted}
    locked = set(re.findall(r"^([a-z0-9-]+)==", LOCK.read_text("utf-8"), re.MULTILINE))
    assert names <= locked


def test_the_image_installs_nothing_but_the_lock() -> None:
    installs = [line for name, line in instructions(0) if name == "RUN" and "pip install" in line]
    assert len(installs) == 1 and "--require-hashes --requirement requirements.lock" in installs[0]
    assert "--no-deps --no-build-isolation ." in installs[0]

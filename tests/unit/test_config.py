"""Configuration: units, precedence, origins, and errors that say where and what."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given, strategies as st
from pydantic import BaseModel, Field, ValidationError

from peerd.config import (
    PROFILES,
    LoadedConfig,
    NodeConfig,
    PeerdConfig,
    check_config,
    config_json_schema,
    is_loopback,
    load_config,
    scaffold_toml,
    split_address,
)
from peerd.config.sources import ConfigSchema, key_lines
from peerd.errors import ConfigError
from peerd.quantities import (
    ConfigSection,
    Duration,
    Size,
    between_durations,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
    setting,
)


class Store(ConfigSection):
    """A plugin that keeps records."""

    lease: Duration = setting("5m", "How long they live.", at_most="records.ttl_max")


class DemoConfig(ConfigSection):
    """What a plugin's configuration looks like."""

    round_timeout: Annotated[Duration, between_durations("10ms", "1h")] = setting("30s", "Longest round.")
    cache_bytes: Size = setting("1MiB", "Cache.")
    retries: int = Field(3, ge=0, description="Retries.")
    weights: dict[str, int] = Field(default_factory=dict, description="Weights.")
    stores: dict[str, Store] = Field(default_factory=dict, description="Tables that the operator names.")


PLUGINS: Mapping[str, type[BaseModel]] = {"demo": DemoConfig}


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def load(
    *files: Path, environment: Mapping[str, str] | None = None, sets: Sequence[str] = (), **flags: object
) -> LoadedConfig:
    dotted = {key.replace("__", "."): value for key, value in flags.items()}
    return load_config(files, environment=environment or {}, sets=sets, flags=dotted, plugin_models=PLUGINS)


def refused(*files: Path, environment: Mapping[str, str] | None = None, sets: Sequence[str] = ()) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(*files, environment=environment, sets=sets)
    return caught.value


# Units


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("30s", 30), ("5m", 300), ("1h", 3600), ("1.5h", 5400), ("2d", 172800), ("10us", 1e-5), ("0s", 0)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "value", ["30", 30, 1.5, "", "s", "-1s", "1 hour", "1S", "1e3s", "nan s", True, None, "9" * 99 + "s", "1s\n"]
)
def test_what_is_no_duration(value: object) -> None:
    with pytest.raises(ValueError, match="unit"):
        parse_duration(value)


@given(st.integers(0, 10**15))
def test_durations_survive_being_written(micros: int) -> None:
    assert round(parse_duration(format_duration(micros / 1e6)) * 1e6) == pytest.approx(micros, abs=1)


@pytest.mark.parametrize(("text", "size"), [("512B", 512), ("64KiB", 65536), ("1.5 MiB", 1572864), ("2GiB", 2**31)])
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("value", ["64", 64, "64KB", "64K", "64kib", "0.3B", "-1B", "", None, True])
def test_what_is_no_size(value: object) -> None:
    with pytest.raises(ValueError, match="KiB"):
        parse_size(value)


@given(st.integers(0, 2**60))
def test_sizes_survive_being_written(size: int) -> None:
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:0", ("127.0.0.1", 0)), ("peer.example:7420", ("peer.example", 7420)), ("[::1]:65535", ("::1", 65535))],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert split_address(text) == address


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":1", "host:65536", "host:-1", "::1:80", "[::1]", "[x]:1", "a b:1", "host:１"]
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError):
        split_address(text)


def test_loopback() -> None:
    assert [is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost")] == [True] * 4
    assert [is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "localhost.example", "127.0.0.1.example")] == [
        False
    ] * 5


# Precedence and origins


def test_defaults() -> None:
    loaded = load()
    assert loaded.config == PeerdConfig(protocols={"demo": DemoConfig()})
    assert set(loaded.origins.values()) == {"default"}
    assert loaded.config.overlay.heartbeat_interval == 7.5
    assert loaded.config.swap.chunk_bytes == 256 * 1024


def test_each_source_wins_over_the_one_before(tmp_path: Path) -> None:
    first = write(tmp_path / "first.toml", '[node]\nprofile = "wan"\n')
    second = write(tmp_path / "second.toml", '# comment\n[overlay]\n\nheartbeat_interval = "2s"\n')
    third = write(tmp_path / "third.toml", 'overlay.heartbeat_interval = "3s"\n')
    key = "overlay.heartbeat_interval"
    environment = {"PEERD_OVERLAY__HEARTBEAT_INTERVAL": "4s"}
    sets = [f"{key}=5s"]
    steps = [
        (load(), 7.5, "default"),
        (load(first), 10.0, "profile wan"),
        (load(first, second), 2.0, f"{second}:4"),
        (load(first, second, third), 3.0, f"{third}:1"),
        (load(first, second, third, environment=environment), 4.0, "environment PEERD_OVERLAY__HEARTBEAT_INTERVAL"),
        (load(first, second, third, environment=environment, sets=sets), 5.0, "flag --set"),
        (
            load(first, second, third, environment=environment, sets=sets, overlay__heartbeat_interval="6s"),
            6.0,
            "flag --heartbeat-interval",
        ),
    ]
    for loaded, seconds, origin in steps:
        assert (loaded.config.overlay.heartbeat_interval, loaded.origins[key]) == (seconds, origin)


def test_a_profile_chosen_on_the_command_line_still_yields_to_files(tmp_path: Path) -> None:
    file = write(tmp_path / "peerd.toml", '[node]\nprofile = "wan"\n[overlay]\nfailure_timeout = "1m"\n')
    loaded = load(file, sets=["node.profile=local"])
    assert loaded.config.overlay.failure_timeout == 60
    assert loaded.config.overlay.exchange_interval == 2
    assert loaded.origins["overlay.exchange_interval"] == "profile local"
    assert loaded.origins["node.profile"] == "flag --set"


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_is_valid(profile: str) -> None:
    assert load(node__profile=profile).config.node.profile == profile


def test_lists_replace_and_tables_merge(tmp_path: Path) -> None:
    first = write(
        tmp_path / "1.toml",
        '[node]\ncluster = "one"\nbootstrap = ["a:1", "b:2"]\n[protocols.demo]\nweights = { x = 1, y = 1 }\n',
    )
    second = write(tmp_path / "2.toml", '[node]\nbootstrap = ["c:3"]\n[protocols.demo.weights]\ny = 2\n')
    config = load(first, second).config
    assert (config.node.cluster, config.node.bootstrap) == ("one", ("c:3",))
    demo = config.protocols["demo"]
    assert isinstance(demo, DemoConfig)
    assert demo.weights == {"x": 1, "y": 2}


def test_a_directory_is_read_in_name_order(tmp_path: Path) -> None:
    write(tmp_path / "20-late.toml", '[node]\ncluster = "late"\n')
    write(tmp_path / "10-early.toml", '[node]\ncluster = "early"\nports_file = "/run/ports"\n')
    write(tmp_path / "30-ignored.txt", "not toml")
    loaded = load(tmp_path)
    assert (loaded.config.node.cluster, loaded.config.node.ports_file) == ("late", "/run/ports")
    assert loaded.origins["node.cluster"] == f"{tmp_path / '20-late.toml'}:2"


def test_text_values_become_what_the_field_needs() -> None:
    loaded = load(
        environment={
            "PEERD_NODE__BOOTSTRAP": "a:1, b:2",
            "PEERD_SWAP__INBOUND_SESSIONS_MAX": "3",
            "PEERD_PROTOCOLS__DEMO__ROUND_TIMEOUT": "5s",
            "PEERD_NODE__CLUSTER": "123",
        },
        sets=["protocols.demo.weights={ a = 1 }", "protocols.demo.weights.b=2"],
    )
    config, demo = loaded.config, loaded.config.protocols["demo"]
    assert isinstance(demo, DemoConfig)
    assert (config.node.bootstrap, config.swap.inbound_sessions_max, config.node.cluster) == (("a:1", "b:2"), 3, "123")
    assert (demo.round_timeout, demo.weights) == (5.0, {"a": 1, "b": 2})
    assert load(sets=['node.bootstrap=["x:1"]']).config.node.bootstrap == ("x:1",)
    assert load(sets=["node.bootstrap="]).config.node.bootstrap == ()
    assert load(sets=["tls.ca_file=/a=b"]).config.tls.ca_file == "/a=b"


def test_rows_show_every_setting_in_file_notation(tmp_path: Path) -> None:
    file = write(tmp_path / "peerd.toml", '[protocols.demo]\nround_timeout = "90s"\n')
    rows = {key: (value, origin) for key, value, origin in load(file).rows()}
    assert rows["protocols.demo.round_timeout"] == ("90s", f"{file}:2")
    assert rows["swap.chunk_bytes"] == ("256KiB", "default")
    tables = (".weights", ".stores")
    scalar_keys = {key for key in ConfigSchema(PeerdConfig, PLUGINS).known_keys() if not key.endswith(tables)}
    assert scalar_keys == set(rows)


def test_flags_that_were_not_given_do_not_count() -> None:
    assert load(node__cluster=None).origins["node.cluster"] == "default"


def test_other_variables_are_left_alone() -> None:
    load(
        environment={"PEERD_CONFIG": "/etc/x", "HOME": "/root", "PEERDX_NODE__CLUSTER": "x", "peerd_node__cluster": "x"}
    )


def test_without_plugin_models_protocol_tables_are_not_looked_at(tmp_path: Path) -> None:
    file = write(tmp_path / "peerd.toml", "[protocols.anything]\nx = 1\n")
    environment = {"PEERD_PROTOCOLS__ANYTHING__X": "2"}
    assert load_config([file], environment=environment).config.protocols == {}


def test_tls_files_default_to_the_state_directory() -> None:
    config = load(sets=["node.state_dir=/srv/p", "tls.ca_file=/etc/ca.pem"]).config
    assert list(map(str, config.tls_files())) == ["/etc/ca.pem", "/srv/p/node.crt", "/srv/p/node.key"]


def test_the_configuration_is_immutable() -> None:
    for name in NodeConfig.model_fields:
        with pytest.raises(ValidationError, match="frozen"):
            setattr(load().config.node, name, "other")


# Errors


def test_an_unknown_key_names_file_line_key_and_the_nearest_name(tmp_path: Path) -> None:
    file = write(tmp_path / "peerd.toml", '[node]\ncluster = "c"\n\nbootstap = []\n')
    error = refused(file)
    assert (error.file, error.key) == (f"{file}:4", "node.bootstap")
    assert error.message == "unknown key: did you mean node.bootstrap?"


@pytest.mark.parametrize(
    ("text", "key", "expected"),
    [
        ("[nod]\n", "nod", "unknown table: did you mean node?"),
        ("[node]\nchunk_bytes = 1\n", "node.chunk_bytes", "unknown key: did you mean swap.chunk_bytes?"),
        ("[protocols.demmo]\n", "protocols.demmo", "unknown table: did you mean protocols.demo?"),
        (
            "[protocols.demo]\nretires = 1\n",
            "protocols.demo.retires",
            "unknown key: did you mean protocols.demo.retries?",
        ),
        ("[admin]\nzzz = 1\n", "admin.zzz", "unknown key; known here: socket, operators, http"),
        (
            "[protocols.demo.stores.a]\nlaese = 1\n",
            "protocols.demo.stores.a.laese",
            "unknown key: did you mean protocols.demo.stores.a.lease?",
        ),
        ("[protocols.demo.stores.a]\nzzz = 1\n", "protocols.demo.stores.a.zzz", "unknown key; known here: lease"),
    ],
)
def test_unknown_tables_and_keys(tmp_path: Path, text: str, key: str, expected: str) -> None:
    error = refused(write(tmp_path / "peerd.toml", text))
    assert (error.key, error.message) == (key, expected)


@pytest.mark.parametrize(
    ("setting_text", "expected"),
    [
        ("overlay.heartbeat_interval=5", 'expected a duration with its unit, such as "500ms"'),
        ("overlay.heartbeat_interval=2h", "expected a duration from 10ms to 1h, not '2h'"),
        ("swap.chunk_bytes=64KB", "expected a size with its unit"),
        ("swap.chunk_bytes=1GiB", "expected a size from 64B to 4MiB, not '1GiB'"),
        ("swap.inbound_sessions_max=many", "expected a whole number"),
        ("swap.inbound_sessions_max=0", "expected at least 1, not '0'"),
        ("node.profile=wide", "expected 'lan', 'wan' or 'local', not 'wide'"),
        ("node.cluster=Upper Case", "expected 1 to 63 of a-z"),
        ("node.listen=7420", 'expected "host:port"'),
        ("admin.socket=" + "x" * 108, "107 bytes"),
        ("admin.http=0.0.0.0:7421", "expected a loopback address"),
        ("data.http=0.0.0.0:7422", "expected a loopback address, or data.tls_certificate and data.tls_key"),
        ("data.socket=" + "x" * 108, "107 bytes"),
        ("data.socket=admin.sock", "expected another path than admin.socket"),
        ("data.tokens=off", "expected 'auto' or 'required'"),
        ("data.connections_max=0", "at least 1"),
        ("overlay.failure_timeout=6s", "expected at least 2 x overlay.heartbeat_interval = 15s"),
        ("overlay.join_retry_max=10ms", "expected at least overlay.join_retry_min"),
        ("protocols.demo.round_timeout=1ms", "expected a duration from 10ms to 1h"),
        ("protocols.demo.retries=-1", "expected at least 0"),
    ],
)
def test_wrong_values_say_what_was_expected(setting_text: str, expected: str) -> None:
    error = refused(sets=[setting_text])
    assert expected in error.message
    assert (error.key, error.file) == (setting_text.partition("=")[0], "flag --set")


@pytest.mark.parametrize(
    ("sets", "key", "expected"),
    [
        (["admin.operators=65534"], "admin.operators.0", "systemd's PrivateUsers= does not map"),
        (["data.cors_origins=https://example.org/page"], "data.cors_origins.0", "expected an origin such as"),
        (["data.tls_certificate=a.pem"], "data.tls_key", "together, or neither"),
        (["data.tls_key=a.pem"], "data.tls_key", "together, or neither"),
        (["data.http=127.0.0.1:1", "data.cors_origins=*"], "data.cors_origins", 'needs data.tokens = "required"'),
        (["admin.socket=/" + "x" * 100 + "/a", "data.socket=long.sock"], "data.socket", "107 bytes"),
    ],
)
def test_settings_of_the_data_listeners_that_do_not_fit(sets: list[str], key: str, expected: str) -> None:
    error = refused(sets=sets)
    assert error.key == key and expected in error.message


@pytest.mark.parametrize(
    ("sets", "needs_token"),
    [
        (["data.http=127.0.0.1:1"], False),
        (["data.http=[::1]:1"], False),
        (["data.http=127.0.0.1:1", "data.tokens=required", "data.cors_origins=*"], True),
        (["data.http=0.0.0.0:1", "data.insecure=true"], True),
        (["data.http=0.0.0.0:1", "data.tls_certificate=a", "data.tls_key=b"], True),
    ],
)
def test_who_needs_a_token(sets: list[str], needs_token: bool) -> None:
    assert load_config(environment={}, sets=sets).config.data_needs_token() is needs_token


@pytest.mark.parametrize(
    ("name", "path"), [("data.sock", "/run/x/data.sock"), ("/tmp/d.sock", "/tmp/d.sock"), ("", "")]
)
def test_the_data_socket_is_beside_the_admin_socket(name: str, path: str) -> None:
    found = load_config(environment={}, sets=["admin.socket=/run/x/admin.sock", f"data.socket={name}"])
    assert found.config.data_socket() == path


def test_an_item_of_a_list_is_named(tmp_path: Path) -> None:
    file = write(tmp_path / "peerd.toml", '[node]\nbootstrap = ["a:1",\n  "b"]\n')
    error = refused(file)
    assert (error.key, error.file) == ("node.bootstrap.1", f"{file}:2")


def test_a_plugins_setting_that_a_kernels_one_bounds(tmp_path: Path) -> None:
    file = tmp_path / "peerd.toml"
    file.write_text('[records]\nttl_max = "20m"\n[protocols.store]\nlease = "21m"\n')
    models = {"store": Store}
    loaded, problems = check_config([file], environment={}, plugin_models=models)
    assert loaded is None
    [error] = problems
    assert (error.file, error.key) == (f"{file}:4", "protocols.store.lease")
    assert error.message.startswith("expected at most records.ttl_max, which is 20m")
    assert check_config([file], environment={}, sets=["protocols.store.lease=20m"], plugin_models=models)[1] == []


def test_plaintext_is_refused_beyond_loopback(tmp_path: Path) -> None:
    error = refused(write(tmp_path / "peerd.toml", '[tls]\nmode = "off"\n'))
    assert error.key == "tls.mode"
    assert "loopback" in error.message
    for listen in ("127.0.0.1:0", "[::1]:7420", "localhost:1"):
        assert load(sets=["tls.mode=off", f"node.listen={listen}"]).config.tls.mode == "off"
    with pytest.raises(ValidationError, match="loopback"):
        PeerdConfig.model_validate({"tls": {"mode": "off"}})


def test_every_problem_is_found_and_the_first_one_raised(tmp_path: Path) -> None:
    file = write(tmp_path / "peerd.toml", '[node]\nlisten = "x"\n[swap]\nchunk = 1\n[protocols.demo]\nretries = "x"\n')
    loaded, problems = check_config([file], environment={}, plugin_models=PLUGINS)
    assert loaded is None
    assert [(error.key, error.file) for error in problems] == [
        ("node.listen", f"{file}:2"),
        ("swap.chunk", f"{file}:4"),
        ("protocols.demo.retries", f"{file}:6"),
    ]
    assert "and 2 more" in refused(file).message


@pytest.mark.parametrize("content", [b"[node", b"\xff\xfe", b"a = 1\na = 2\n", b"x = " + b"[" * 5000])
def test_what_is_no_toml_names_the_file(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "peerd.toml"
    file.write_bytes(content)
    error = refused(file)
    assert error.file == str(file)
    assert "TOML" in error.message


def test_missing_and_oversized_files(tmp_path: Path) -> None:
    assert "cannot read" in refused(tmp_path / "missing.toml").message
    assert "larger" in refused(write(tmp_path / "large.toml", "#" * (1024 * 1024 + 1))).message


def test_a_variable_with_one_underscore_is_a_mistake() -> None:
    error = refused(environment={"PEERD_NODE_CLUSTER": "x"})
    assert "PEERD_NODE__CLUSTER" in error.message


def test_an_unknown_variable_is_a_mistake() -> None:
    error = refused(environment={"PEERD_NODE__CLUSTR": "x"})
    assert (error.key, error.file) == ("node.clustr", "environment PEERD_NODE__CLUSTR")
    assert "node.cluster" in error.message


@pytest.mark.parametrize("text", ["node.cluster", "cluster=x", "=x", "node.=x", ""])
def test_set_needs_section_key_and_value(text: str) -> None:
    assert "expected section.key=value" in refused(sets=[text]).message


@pytest.mark.parametrize("text", ["node=1", 'node = "x"'])
def test_a_value_where_a_table_belongs(tmp_path: Path, text: str) -> None:
    error = refused(write(tmp_path / "peerd.toml", text))
    assert error.key == "node"


def test_a_value_and_a_table_of_the_same_name_in_one_source() -> None:
    assert "both as a value and as a table" in refused(sets=["node.cluster=x", "node.cluster.y=1"]).message


# Line numbers, scaffold, schema


def test_line_numbers() -> None:
    text = "\n".join(
        ["top = 1", "[a.b]  # c", "x = 1", "  'q r' = 2", "c.d = 3", 'text = """', "y = 9", '"""', "z = 1", "[[list]]"]
    )
    assert key_lines(text) == {
        "top": 1, "a.b": 2, "a.b.x": 3, "a.b.q r": 4, "a.b.c.d": 5, "a.b.text": 6, "a.b.z": 9, "list": 10,
    }  # fmt: skip


def uncommented(scaffold: str) -> dict[str, Any]:
    """What the file says once every default in it is uncommented."""
    return tomllib.loads("\n".join(re.sub(r"^#(?=\w)", "", line) for line in scaffold.splitlines()))


def test_the_scaffold_is_a_valid_file_that_changes_nothing(tmp_path: Path) -> None:
    text = scaffold_toml(PLUGINS)
    assert load(write(tmp_path / "peerd.toml", text)) == load()


def test_the_uncommented_scaffold_is_the_default_configuration(tmp_path: Path) -> None:
    tree = uncommented(scaffold_toml(PLUGINS))
    demo = tree.pop("protocols")["demo"]
    assert PeerdConfig.model_validate(tree) == PeerdConfig()
    assert DemoConfig.model_validate(demo) == DemoConfig()
    assert {f"{table}.{key}" for table, keys in tree.items() for key in keys} == set(
        ConfigSchema(PeerdConfig, None).known_keys()
    )


def test_every_setting_is_described_for_an_operator() -> None:
    for table, model in ConfigSchema(PeerdConfig, None).tables():
        assert model.__doc__
        for key, info in model.model_fields.items():
            assert info.description and info.description.rstrip().endswith((".", ")")), f"{table}.{key}"


def test_the_json_schema_covers_every_key_and_plugin() -> None:
    schema = config_json_schema(PLUGINS)
    definitions = schema["$defs"]
    root = definitions[schema["$ref"].rpartition("/")[2]]
    assert set(root["properties"]) == set(PeerdConfig.model_fields)
    assert root["additionalProperties"] is False
    assert set(root["properties"]["protocols"]["properties"]) == {"demo"}
    heartbeat = definitions["OverlayConfig"]["properties"]["heartbeat_interval"]
    assert (heartbeat["type"], heartbeat["default"]) == ("string", "7.5s")
    assert definitions["DemoConfig"]["properties"]["round_timeout"]["description"] == "Longest round."


def test_importing_the_configuration_stays_cheap() -> None:
    """A daemon that only forwards must not pay for what it does not use."""
    code = "import sys, peerd.config; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    heavy = {"cryptography", "fastapi", "httpx", "numpy", "pandas", "pydantic_settings", "pyspark", "rich", "typer"}
    assert heavy.isdisjoint(done.stdout.split())


def test_networks_are_checked() -> None:
    config = load(sets=['node.allowed_networks=["10.0.0.0/8", "fd00::/8", "192.0.2.7"]']).config
    assert config.node.allowed_networks == ("10.0.0.0/8", "fd00::/8", "192.0.2.7")
    with pytest.raises(ConfigError, match="expected a network"):
        load(sets=["node.allowed_networks=10.0.0.1/8"])

"""Decoders of what people, clients and disks give: filters, tokens, certificates, configuration, stored state."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from pydantic import ValidationError

from peerd.config import check_config, is_loopback, split_address
from peerd.daemon.http.access_book import AccessBook, AccessRefused, AccessToken
from peerd.errors import HandshakeRefused
from peerd.identity.authority import ClusterAuthority
from peerd.identity.ledger import kept_notice, notice_text, parse_notice_text, parse_subject, sign_notice
from peerd.identity.node_identity import verify_peer_certificate
from peerd.identity.tokens import JoinToken, TokenEntry
from peerd.ids import parse_id
from peerd.lib.filter.errors import FilterError
from peerd.lib.filter.evaluate import matcher
from peerd.lib.filter.grammar import Dialect
from peerd.lib.filter.json_forms import from_json
from peerd.lib.filter.normal import normal_form
from peerd.lib.filter.parse import parse
from peerd.lib.filter.write import write
from peerd.models.streams import stream_lines
from peerd.plugins import find_plugins
from peerd.quantities import parse_duration, parse_size
from peerd.wire.trust import Denial
from tests.fuzz import mutate
from tests.fuzz.aggregation_targets import WORDS
from tests.fuzz.target import Target, reported

CLUSTER: Final = "fuzz"
FILTERS: Final = (
    "a = 1 AND b <> 'x' OR NOT (c BETWEEN 3 AND 5)",
    "name LIKE 'a%_b' ESCAPE '\\' OR name MATCHES '^a+b{2,3}$'",
    "host IN ('a', 'b') AND EXISTS(c) AND d IS NOT NULL",
    "ip CIDR '10.0.0.0/8' AND at > TIMESTAMP '2024-01-01T00:00:00Z'",
    "x STARTS WITH 'ab' AND y ENDS WITH 'c' AND z CONTAINS 'd'",
)
POLICIES: Final = (
    {"a": ["x", {"prefix": "y"}, {"numeric": [">", 1, "<=", 5]}], "b": {"c": [{"exists": False}]}},
    {"$or": [{"a": [1]}, {"b": [{"anything-but": ["x"]}]}], "ip": [{"cidr": "10.0.0.0/8"}], "w": [{"wildcard": "a*b"}]},
    [{"all": [{"exact": {"type": "a"}}, {"not": {"prefix": {"source": "b"}}}]}, {"sql": "a = 1"}],
)
EVENT: Final = {"a": 1, "b": "x", "c": None, "name": "aab", "ip": "10.1.2.3", "at": "2024-05-01T00:00:00Z", "x": 1e300}
CONFIG: Final = """\
[node]
cluster = "c1"
listen = "127.0.0.1:7420"
bootstrap = ["10.0.0.1:7420", "[::1]:7420"]
allowed_networks = ["10.0.0.0/8"]
[tls]
mode = "mutual"
[limits]
links_max = 512
peer_messages_per_second = 2000
[telemetry]
sinks = ["stdout"]
[swap]
stall_timeout = "30s"
memory_budget = "64MiB"
[protocols.aggregation]
deadline = "20s"
data_root = "/srv"
"""
CONFIG_WORDS: Final = (
    "=",
    "[",
    "]",
    "[[",
    "]]",
    "nan",
    "inf",
    "1979-05-27",
    "'''",
    "{",
    "}",
    "true",
    '"64MiB"',
    "#",
    ".",
)
_TARGET_WEIGHT_SLOW: Final = 0.2


def text_targets(folder: Path) -> Iterator[Target]:
    """Every target of this module. ``folder``: for the files that decoders read."""
    yield from _filter_targets()
    yield from _identity_targets()
    yield from _row_targets()
    yield Target("config file", _config_text, _read_config(folder), (), _TARGET_WEIGHT_SLOW)
    yield Target("config sets", _settings, _read_sets, (), _TARGET_WEIGHT_SLOW)
    yield Target("stream line", _stream_line, reported(stream_lines.validate_json), (ValidationError,), 2)


# --- filters ---------------------------------------------------------------------------------------------------------


def _filter_targets() -> Iterator[Target]:
    words = (*WORDS, *(word.upper() for word in WORDS))
    for dialect in Dialect:
        yield Target(
            f"filter {dialect.value}",
            lambda rng: mutate.text(rng, rng.choice(FILTERS), words),
            _use_filter(lambda text, dialect=dialect: parse(text, dialect=dialect)),
            (FilterError,),
        )
    policy = [json.dumps(each) for each in POLICIES]
    yield Target(
        "filter json",
        lambda rng: mutate.json_text(rng, rng.choice(policy)),
        _use_filter(_from_json_text),
        (FilterError,),
    )


def _from_json_text(text: str) -> Any:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FilterError("no JSON: its reader's business") from error
    return from_json(document)


def _use_filter(read: Callable[..., Any]) -> Callable[[Any], None]:
    """What is accepted can be matched against an event, normalised, written, and read again."""

    def run(document: Any) -> None:
        node = read(document)
        matcher(node)(EVENT)
        assert parse(write(node)) == node
        normal_form(node)

    return run


# --- who somebody is -------------------------------------------------------------------------------------------------


def _identity_targets() -> Iterator[Target]:
    authority = ClusterAuthority.create(CLUSTER)
    leaf = x509.load_pem_x509_certificate(
        authority.issue(Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key(), timedelta(days=1))
    ).public_bytes(Encoding.DER)
    root = authority.certificate.public_bytes(Encoding.DER)
    token = JoinToken(CLUSTER, bytes(16), bytes(16)).text()
    book = AccessBook()
    shown, _ = book.create("me", ["*"], 60, 0, bytes(8), bytes(32))
    notice = notice_text(sign_notice(authority, Denial(CLUSTER, 1, f"node:{7:032x}", False, "x")))

    def certificate(rng: Random) -> bytes:
        return mutate.der(rng, leaf if rng.random() < 0.9 else root)

    def check_certificate(der: bytes) -> None:
        verify_peer_certificate(der, cluster=CLUSTER, expected=None, denied=frozenset())

    yield Target("certificate", certificate, check_certificate, (HandshakeRefused,), 4)
    yield _text_target("join token", token, JoinToken.parse, (ValueError,))
    yield _text_target("access token", shown, lambda text: book.find(text, 1), (AccessRefused,))
    yield _text_target("notice text", notice, parse_notice_text, (ValueError,))
    yield _text_target("subject of a denial", f"node:{7:032x}", parse_subject, (ValueError,))
    yield _text_target("node id", f"{7:032x}", parse_id, (ValueError,))
    yield _text_target("address", "[::1]:7420", split_address, (ValueError,))
    yield _text_target("loopback", "127.0.0.1", is_loopback, ())
    yield _text_target("duration", "1.5h", parse_duration, (ValueError,))
    yield _text_target("size", "64 KiB", parse_size, (ValueError,))


def _text_target(
    name: str, valid: str, run: Callable[[str], object], raises: tuple[type[BaseException], ...]
) -> Target:
    return Target(name, lambda rng: mutate.text(rng, valid, (".", "ff", "x" * 300, "[", "]:")), run, raises)


# --- what a daemon keeps ---------------------------------------------------------------------------------------------


def _row_targets() -> Iterator[Target]:
    """Rows of ``state.db`` whose checksum is right: damage is found before, but another program may have written."""
    from peerd.daemon.storage.state_directory import _parse_epoch, _parse_known_peer

    token = TokenEntry("ab" * 32, 1.0, 2.0, 1, 0).row()
    access = AccessToken("ab" * 8, "me", "cd" * 32, ("*",), 1.0, 2.0).row()
    for name, valid, read in (
        ("row of a known peer", (0, f"{7:032x}", "10.0.0.1", 7420), _parse_known_peer),
        ("row of the boot epoch", ("boot_epoch", 7), _parse_epoch),
        ("row of a join token", token, TokenEntry.from_row),
        ("row of an access token", access, AccessToken.from_row),
        ("row of a notice", ("x", 11, b"a", bytes(16), bytes(64)), kept_notice),
    ):
        yield Target(name, _row_like(valid), read, (ValueError,))


def _row_like(valid: tuple[Any, ...]) -> Callable[[Random], tuple[Any, ...]]:
    def make(rng: Random) -> tuple[Any, ...]:
        row = list(valid)
        for _ in range(1 + rng.randrange(2)):
            changed = mutate.edited(rng, row)
            row = changed if isinstance(changed, list) else [changed]
        return tuple(None if isinstance(value, list | dict) else value for value in row)

    return make


# --- configuration and streams ---------------------------------------------------------------------------------------


@functools.cache
def _models() -> dict[str, Any]:
    return {name: plugin.Config for name, plugin in find_plugins().items()}


def _config_text(rng: Random) -> bytes:
    written = mutate.text(rng, CONFIG, CONFIG_WORDS).encode("utf-8", "surrogatepass")
    return mutate.damaged(rng, written) if rng.random() < 0.1 else written


def _read_config(folder: Path) -> Callable[[bytes], None]:
    path, models = folder / "peerd.toml", _models()

    def run(content: bytes) -> None:
        path.write_bytes(content)
        loaded, problems = check_config([path], environment={}, plugin_models=models)
        assert (loaded is None) == bool(problems)
        if loaded is not None:
            list(loaded.rows())

    return run


def _settings(rng: Random) -> tuple[dict[str, str], list[str]]:
    name = mutate.text(rng, "PEERD_NODE__BOOTSTRAP", ("__", "PEERD", "TLS", "PROTOCOLS__AGGREGATION__DEADLINE"))
    value = mutate.text(rng, '["10.0.0.1:7420"]', CONFIG_WORDS)
    return {name: value}, [mutate.text(rng, "limits.links_max=512", CONFIG_WORDS)]


def _read_sets(case: tuple[dict[str, str], list[str]]) -> None:
    environment, sets = case
    loaded, problems = check_config(environment=environment, sets=sets, plugin_models=_models())
    assert (loaded is None) == bool(problems)


def _stream_line(rng: Random) -> bytes:
    line = rng.choice(
        (
            {"type": "item", "id": "5.7", "at": 1.5, "data": {"a": [1, None]}},
            {"type": "gap", "id": "5.7", "missed": 3},
            {"type": "dropped", "id": "5.7", "count": 3},
            {"type": "end", "id": "5.7", "reason": "stopped", "is_final": True},
        )
    )
    return mutate.json_text(rng, json.dumps(line)).encode("utf-8", "surrogatepass")

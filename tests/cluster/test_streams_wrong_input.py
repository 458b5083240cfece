"""A real daemon and everything that may be wrong with a request about streams: each gets its status and its reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from peerd.cluster.layout import socket_file
from peerd.cluster.local import LocalCluster
from protocols.dissemination.messages import INTEREST_BYTES_MAX, ITEM_BYTES_MAX

pytestmark = pytest.mark.cluster

JSON: Final = {"Content-Type": "application/json"}
LINES: Final = {"Content-Type": "application/x-ndjson"}
STREAMS: Final = "/v1/streams"
NEWS: Final = f"{STREAMS}/news"
TICKS: Final = f"{STREAMS}/ticks"

Wrong = tuple[str, str, dict[str, Any], int, str]
"""Method, path, what httpx is given besides, the status, and a part of the reason."""

CREATING: Final[tuple[Wrong, ...]] = (
    ("POST", STREAMS, {"content": b"{", "headers": JSON}, 422, "JSON"),
    ("POST", STREAMS, {"content": b"", "headers": JSON}, 422, "body"),
    ("POST", STREAMS, {"content": b"\xff\xfe", "headers": JSON}, 422, "JSON"),
    ("POST", STREAMS, {"content": b"name=news"}, 415, "Content-Type: application/json"),
    ("POST", STREAMS, {"content": b"<a/>", "headers": {"Content-Type": "text/xml"}}, 415, "application/json"),
    ("POST", STREAMS, {"json": []}, 422, "expected an object"),
    ("POST", STREAMS, {"json": "news"}, 422, "expected an object"),
    ("POST", STREAMS, {"json": None}, 422, "body"),
    ("POST", STREAMS, {"json": {}}, 422, "name: it has to be there"),
    ("POST", STREAMS, {"json": {"name": 7}}, 422, "name: expected text, not 7"),
    ("POST", STREAMS, {"json": {"name": ""}}, 422, "no name of a stream"),
    ("POST", STREAMS, {"json": {"name": "9lives"}}, 422, "'9lives' is no name of a stream: expected a letter"),
    ("POST", STREAMS, {"json": {"name": "a" * 65}}, 422, "up to 63 more"),
    ("POST", STREAMS, {"json": {"name": "new", "fan_out": 3}}, 422, "fan_out"),
    ("POST", STREAMS, {"json": {"name": "new", "kind": "nothing"}}, 422, "nothing"),
    ("POST", STREAMS, {"json": {"name": "new", "kind": ["xpath"]}}, 422, "kind: "),
    ("POST", STREAMS, {"json": {"name": "new", "policy": "../overlap"}}, 422, "policy"),
    ("POST", STREAMS, {"json": {"name": "new", "producer_gone": "cry"}}, 422, "producer_gone: "),
    ("POST", STREAMS, {"json": {"name": "new", "settings": [1]}}, 422, "settings: "),
    ("POST", STREAMS, {"json": {"name": "new", "settings": {"threshold": 7}}}, 422, "threshold"),
    ("POST", STREAMS, {"json": {"name": "new", "settings": {"colour": "red"}}}, 422, "no such setting"),
    ("POST", STREAMS, {"json": {"name": "new", "settings": {"tie": {"a": 1}}}}, 422, "tie: a setting is a number"),
    ("POST", STREAMS, {"json": {"name": "new", "settings": {"tie": "x" * 1000}}}, 422, "tie"),
    ("POST", STREAMS, {"json": {"name": "new", "settings": {f"s{n}": 1 for n in range(65)}}}, 422, "settings"),
    ("POST", STREAMS, {"json": {"name": "news", "kind": "attributes"}}, 409, 'kind is "xpath", not "attributes"'),
    ("POST", STREAMS, {"content": b"{" + b" " * (1 << 23) + b"}", "headers": JSON}, 413, "bytes"),
)
PATHS: Final[tuple[Wrong, ...]] = (
    ("GET", f"{STREAMS}/nowhere", {}, 404, "nowhere"),
    ("GET", f"{STREAMS}/a%20b", {}, 422, "'a b' is no name of a stream"),
    ("GET", f"{STREAMS}/%00", {}, 422, "no name of a stream"),
    ("GET", f"{STREAMS}/..%2F..%2Fetc", {}, 404, "Not Found"),
    ("DELETE", f"{STREAMS}/nowhere", {}, 404, "nowhere"),
    ("PUT", NEWS, {"json": {}}, 405, "Method Not Allowed"),
    ("PATCH", STREAMS, {"json": {}}, 405, "Method Not Allowed"),
    ("DELETE", f"{NEWS}/items", {}, 405, "Method Not Allowed"),
    ("POST", f"{NEWS}/tree", {"json": {}}, 405, "Method Not Allowed"),
    ("GET", f"{NEWS}/leaves", {}, 404, "Not Found"),
    ("GET", f"{STREAMS}/nowhere/tree", {}, 404, "nowhere"),
    ("GET", f"{STREAMS}/nowhere/plan", {}, 404, "nowhere"),
    ("GET", f"{STREAMS}/nowhere/history", {}, 404, "nowhere"),
)
PUBLISHING: Final[tuple[Wrong, ...]] = (
    ("POST", f"{NEWS}/items", {"content": b""}, 422, "empty"),
    ("POST", f"{NEWS}/items", {"content": b"<a>"}, 422, "no well-formed XML"),
    ("POST", f"{NEWS}/items", {"content": b"\0"}, 422, "zero bytes"),
    ("POST", f"{NEWS}/items", {"content": b"<!DOCTYPE a><a/>"}, 422, "DOCTYPE"),
    ("POST", f"{NEWS}/items", {"content": b"<a>" + b"x" * ITEM_BYTES_MAX + b"</a>"}, 422, str(ITEM_BYTES_MAX)),
    ("POST", f"{NEWS}/items?wrapped=perhaps", {"content": b"<a/>"}, 422, "wrapped: "),
    ("POST", f"{STREAMS}/nowhere/items", {"content": b"<a/>"}, 404, "nowhere"),
    ("POST", f"{STREAMS}/nowhere/items", {"content": b"{}\n", "headers": LINES}, 404, "nowhere"),
    ("POST", f"{TICKS}/items", {"content": b"[1]"}, 422, "object"),
    ("POST", f"{TICKS}/items", {"content": b'{"a": NaN}'}, 422, "NaN"),
    ("POST", f"{TICKS}/items", {"content": b'{"a": 1, "a": 2}'}, 422, "a"),
    ("POST", f"{TICKS}/items", {"content": b'{"a":' * 40 + b"1" + b"}" * 40}, 422, "nested deeper than 32"),
)
SUBSCRIBING: Final[tuple[Wrong, ...]] = (
    ("POST", f"{NEWS}/subscriptions", {"json": {"interest": "//["}}, 422, "no valid XPath"),
    ("POST", f"{NEWS}/subscriptions", {"json": {"interest": 7}}, 422, "interest: "),
    ("POST", f"{NEWS}/subscriptions", {"json": {"interest": "/a" * INTEREST_BYTES_MAX}}, 422, "interest: "),
    ("POST", f"{NEWS}/subscriptions", {"json": {"filter": "//a"}}, 422, "filter"),
    ("POST", f"{NEWS}/subscriptions", {"json": {"name": "a/b"}}, 422, "'a/b' is no name of a subscription"),
    ("POST", f"{NEWS}/subscriptions", {"json": {"after": 7}}, 422, "after: "),
    ("POST", f"{NEWS}/subscriptions", {"json": {"after": "yesterday"}}, 422, "id of an item"),
    ("POST", f"{NEWS}/subscriptions", {"json": {"after": "1-99999999999999999999"}}, 422, "no id of an item"),
    ("POST", f"{NEWS}/subscriptions", {"json": {"after": "9" * 41}}, 422, "id of an item"),
    ("POST", f"{NEWS}/subscriptions", {"content": b"{}", "headers": {"Content-Type": "text/plain"}}, 415, "json"),
    ("POST", f"{TICKS}/subscriptions", {"json": {"interest": "price >"}}, 422, "price >"),
    ("POST", f"{STREAMS}/nowhere/subscriptions", {"json": {}}, 404, "nowhere"),
    ("GET", f"{NEWS}/items?interest=//[", {}, 422, "no valid XPath"),
    ("GET", f"{NEWS}/items?after_item=yesterday", {}, 422, "id of an item"),
    ("GET", f"{NEWS}/items?after_item={'9' * 50}", {}, 422, "after_item: "),
    ("GET", f"{NEWS}/items?after=yesterday", {}, 422, "after: expected the id"),
    ("GET", f"{STREAMS}/nowhere/items", {}, 404, "nowhere"),
    ("GET", f"{NEWS}/subscriptions/nobody/items", {}, 404, "no subscription nobody"),
    ("DELETE", f"{NEWS}/subscriptions/nobody", {}, 404, "no subscription nobody"),
    ("DELETE", f"{NEWS}/subscriptions/{'9' * 500}", {}, 404, "no subscription"),
    ("PUT", f"{NEWS}/subscriptions", {"json": {}}, 405, "Method Not Allowed"),
)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """One daemon with a stream of XML documents and one of JSON objects."""
    folder: Path = tmp_path_factory.mktemp("wrong")
    with LocalCluster(folder / "cluster", name="test") as cluster:
        cluster.up(1)
        socket = str(socket_file(cluster.record(), 0))
        transport = httpx.HTTPTransport(uds=socket)
        with httpx.Client(transport=transport, base_url="http://localhost", timeout=60.0) as client:
            assert client.post(STREAMS, json={"name": "news", "kind": "xpath"}).status_code == 201
            assert client.post(STREAMS, json={"name": "ticks"}).status_code == 201
            yield client


@pytest.mark.parametrize("wrong", [*CREATING, *PATHS, *PUBLISHING, *SUBSCRIBING], ids=lambda wrong: " ".join(wrong[:2]))
def test_a_wrong_request_gets_its_status_and_the_reason(daemon: httpx.Client, wrong: Wrong) -> None:
    method, path, given, status, reason = wrong
    response = daemon.request(method, path, **given)
    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json")
    assert reason in response.json()["detail"]


def test_wrong_lines_are_counted_and_named_and_the_others_are_published(daemon: httpx.Client) -> None:
    lines = b'{"a": 1}\n[1]\n{"a": NaN}\nnonsense\n\n{"a": 2}\n'
    answer = daemon.post(f"{TICKS}/items", content=lines, headers=LINES)
    told = answer.json()
    assert (answer.status_code, told["accepted"], told["refused"]) == (422, 2, 3)
    assert [error["line"] for error in told["errors"]] == [2, 3, 4]
    wrapped = b'{"payload": "{}"}\n{"payload_base64": "!"}\n{}\n{"payload": "{}", "colour": "red"}\n'
    told = daemon.post(f"{TICKS}/items?wrapped=1", content=wrapped, headers=LINES).json()
    assert (told["accepted"], [error["line"] for error in told["errors"]]) == (1, [2, 3, 4])
    assert all(error["detail"] for error in told["errors"])

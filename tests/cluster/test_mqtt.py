"""``peerd mqtt`` before a real daemon, used by MQTT clients that others wrote: paho, and Mosquitto's commands."""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon_process import clean_environment, peerd, running, wait_until
from tests.support.forked import Forked

pytest.importorskip("ohmqtt", reason="the extra `mqtt` is not installed")
client_library: Any = pytest.importorskip("paho.mqtt.client", reason="paho-mqtt is not installed")
Properties: Any = pytest.importorskip("paho.mqtt.properties").Properties
PacketTypes: Any = pytest.importorskip("paho.mqtt.packettypes").PacketTypes
SubscribeOptions: Any = pytest.importorskip("paho.mqtt.subscribeoptions").SubscribeOptions

pytestmark = pytest.mark.cluster

WAIT_S = 60.0
SCHEMA = {
    "name": "machines",
    "attributes": [
        {"name": "host", "type": "string"},
        {"name": "kind", "type": "string"},
        {"name": "load", "type": "float", "low": 0, "high": 100},
    ],
}


class GatewayProcess:
    """``peerd mqtt`` on a port of its own."""

    def __init__(self, directory: Path, socket: str) -> None:
        self._output, self.socket = directory / "gateway.out", socket
        command = ["mqtt", "--socket", socket, "--schema", "machines", "--topic", "machines/{host}/{kind}"]
        command += ["--listen", "127.0.0.1:0", "--state", str(directory / "sessions.json")]
        with open(os.devnull, "rb") as nothing, self._output.open("wb") as out:
            files = {"stdin": nothing.fileno(), "stdout": out.fileno(), "stderr": out.fileno()}
            self.process = Forked(command, env=clean_environment(), **files)
        wait_until(lambda: "MQTT on" in self.output() or self.process.poll() is not None, "the gateway listens")
        assert "MQTT on" in self.output(), self.output()
        self.port = int(self.output().partition("127.0.0.1:")[2].partition(",")[0])

    def output(self) -> str:
        """What it has printed."""
        return self._output.read_text(errors="replace")

    def stop(self) -> int:
        """Stop it as systemd does."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_S)


class Caller:
    """A client of paho: what it receives is in ``messages``."""

    def __init__(self, port: int, client_id: str = "", *, is_clean: bool = True) -> None:
        self.messages: queue.Queue[tuple[str, bytes, int, bool]] = queue.Queue()
        self._subscribed: queue.Queue[list[int]] = queue.Queue()
        self._connected, self.is_known = threading.Event(), False
        version = client_library.CallbackAPIVersion.VERSION2
        self.client = client_library.Client(version, client_id=client_id, clean_session=is_clean)
        self.client.on_message = lambda _client, _data, got: self.messages.put(
            (got.topic, got.payload, got.qos, bool(got.retain))
        )
        self.client.on_subscribe = lambda _c, _d, _m, codes, _p: self._subscribed.put([code.value for code in codes])
        self.client.on_connect = self._on_connect
        self.client.connect("127.0.0.1", port, keepalive=60)
        self.client.loop_start()
        assert self._connected.wait(WAIT_S)

    def _on_connect(self, _client: Any, _data: Any, flags: Any, code: Any, _properties: Any) -> None:
        self.is_known = flags.session_present
        if not code.is_failure:
            self._connected.set()

    def subscribe(self, *topic_filters: str, qos: int = 1) -> list[int]:
        """Subscribe; returns what the gateway granted."""
        self.client.subscribe([(each, qos) for each in topic_filters])
        return self._subscribed.get(timeout=WAIT_S)

    def publish(self, topic: str, payload: bytes | str, qos: int = 1, *, retain: bool = False) -> None:
        """Publish, and wait for the acknowledgement."""
        self.client.publish(topic, payload, qos, retain).wait_for_publish(WAIT_S)

    def next(self) -> tuple[str, bytes, int, bool]:
        """The next message."""
        return self.messages.get(timeout=WAIT_S)

    def close(self) -> None:
        """Say goodbye."""
        self.client.disconnect()
        self.client.loop_stop()


@contextmanager
def site(directory: Path) -> Iterator[tuple[str, GatewayProcess]]:
    """A daemon with a schema, and a gateway before it."""
    with running(directory / "node") as daemon:
        daemon.ready()
        (directory / "schema.json").write_text(json.dumps(SCHEMA))
        declared = daemon.ask("schema", "declare", str(directory / "schema.json"))
        assert declared.returncode == 0, declared.stderr
        gateway = GatewayProcess(directory, daemon.socket)
        try:
            yield daemon.socket, gateway
        finally:
            gateway.process.kill()


def test_paho_publishes_and_subscribes(tmp_path: Path) -> None:
    with site(tmp_path) as (_, gateway):
        one, other = Caller(gateway.port), Caller(gateway.port)
        hot = "$filter/load%20%3E%2050/machines/#"
        assert one.subscribe("machines/+/cpu", "nonsense/#", qos=2) == [1, 0x80]
        assert other.subscribe(hot) == [1]
        other.publish("machines/web1/cpu", '{"load": 20}', 0)
        other.publish("machines/web2/disk", b"\xff\x00", 1)
        other.publish("machines/web3/cpu", '{"load": 70}', 2)
        assert one.next() == ("machines/web1/cpu", b'{"load": 20}', 1, False)
        assert one.next() == ("machines/web3/cpu", b'{"load": 70}', 1, False)
        assert other.next() == ("machines/web3/cpu", b'{"load": 70}', 1, False)
        other.publish("machines/web1/state", "up", retain=True)
        assert one.subscribe("machines/+/state") == [1]
        assert one.next() == ("machines/web1/state", b"up", 1, True)
        one.close()
        other.close()
        assert gateway.stop() == 0


class Caller5:
    """A client of paho that speaks MQTT 5: what it receives is in ``messages``."""

    def __init__(self, port: int, client_id: str = "", *, expires_s: int = 0, is_clean: bool = True) -> None:
        self.messages: queue.Queue[Any] = queue.Queue()
        self._subscribed: queue.Queue[list[int]] = queue.Queue()
        self._published: queue.Queue[Any] = queue.Queue()
        self._connected: queue.Queue[tuple[bool, Any]] = queue.Queue()
        version = client_library.CallbackAPIVersion.VERSION2
        self.client = client_library.Client(version, client_id=client_id, protocol=client_library.MQTTv5)
        self.client.on_message = lambda _client, _data, got: self.messages.put(got)
        self.client.on_subscribe = lambda _c, _d, _m, codes, _p: self._subscribed.put([code.value for code in codes])
        self.client.on_publish = lambda _c, _d, _m, code, said: self._published.put((code.value, said))
        self.client.on_connect = lambda _c, _d, flags, _code, said: self._connected.put((flags.session_present, said))
        said = Properties(PacketTypes.CONNECT)
        said.SessionExpiryInterval = expires_s
        self.client.connect("127.0.0.1", port, keepalive=60, clean_start=is_clean, properties=said)
        self.client.loop_start()
        self.is_known, self.told = self._connected.get(timeout=WAIT_S)

    def subscribe(self, topic_filter: str, number: int = 0, **options: Any) -> list[int]:
        """Subscribe; returns what the gateway granted."""
        said = Properties(PacketTypes.SUBSCRIBE)
        if number:
            said.SubscriptionIdentifier = number
        self.client.subscribe(topic_filter, options=SubscribeOptions(**options), properties=said)
        return self._subscribed.get(timeout=WAIT_S)

    def publish(self, topic: str, payload: str, qos: int = 1, *, retain: bool = False, **properties: Any) -> Any:
        """Publish, and return the reason and the properties of the acknowledgement."""
        said = Properties(PacketTypes.PUBLISH)
        for name, value in properties.items():
            setattr(said, name, value)
        self.client.publish(topic, payload, qos, retain, said)
        return self._published.get(timeout=WAIT_S)

    def next(self) -> Any:
        """The next message."""
        return self.messages.get(timeout=WAIT_S)

    def close(self) -> None:
        """Say goodbye."""
        self.client.disconnect()
        self.client.loop_stop()


def test_paho_speaks_mqtt_5(tmp_path: Path) -> None:
    with site(tmp_path) as (_, gateway):
        one, other = Caller5(gateway.port), Caller5(gateway.port)
        assert one.told.AssignedClientIdentifier and one.told.ReceiveMaximum
        assert one.subscribe("machines/+/cpu", 7, qos=1, noLocal=True) == [1]
        assert one.subscribe("nonsense/#", qos=1) == [0x8F]
        code, said = other.publish("nonsense", "x")
        assert (code, "has not the levels" in said.ReasonString) == (0x90, True)
        code, said = other.publish("machines/a/cpu", '{"load": 5000}')
        assert code == 0x99
        assert one.publish("machines/a/cpu", '{"load": 1}')[0] == 0  # its own, which it does not want
        full: dict[str, Any] = {
            "PayloadFormatIndicator": 1,
            "MessageExpiryInterval": 1000,
            "ContentType": "application/json",
            "ResponseTopic": "answers/7",
            "CorrelationData": b"\0\xff",
            "UserProperty": [("trace", "1"), ("trace", "2")],
        }
        assert other.publish("machines/b/cpu", '{"load": 2}', retain=True, **full)[0] == 0
        found = one.next()
        assert (found.topic, found.payload, found.qos, found.retain) == ("machines/b/cpu", b'{"load": 2}', 1, False)
        got = found.properties
        assert (got.ContentType, got.ResponseTopic, got.CorrelationData) == ("application/json", "answers/7", b"\0\xff")
        assert (got.UserProperty, got.SubscriptionIdentifier) == (full["UserProperty"], [7])
        assert 0 < got.MessageExpiryInterval <= 1000
        # retained messages come, or do not, as the subscription says
        assert other.subscribe("machines/b/#", qos=1, retainHandling=SubscribeOptions.RETAIN_DO_NOT_SEND) == [1]
        assert one.subscribe("machines/b/+", 8, qos=1) == [1]
        again = one.next()
        assert (again.payload, again.retain, again.properties.SubscriptionIdentifier) == (b'{"load": 2}', True, [8])
        assert one.subscribe("$share/team/machines/+/disk", qos=1) == [1]
        assert other.subscribe("$share/team/machines/+/disk", qos=1) == [1]
        one.messages = other.messages = queue.Queue()
        for number in range(20):
            other.publish(f"machines/c{number}/disk", "x")
        shared = [one.next().topic for _ in range(20)]  # by either of them, and none by both
        assert sorted(shared) == sorted(f"machines/c{number}/disk" for number in range(20))
        one.close()
        other.close()
        assert gateway.stop() == 0


def test_a_session_of_mqtt_5_is_kept_for_a_while(tmp_path: Path) -> None:
    with site(tmp_path) as (_, gateway):
        sender, receiver = Caller5(gateway.port), Caller5(gateway.port, "audit", expires_s=1000)
        assert receiver.subscribe("machines/#", 3, qos=1) == [1]
        receiver.close()
        sender.publish("machines/a/x", "while it was away")
        receiver = Caller5(gateway.port, "audit", expires_s=0, is_clean=False)
        assert receiver.is_known
        found = receiver.next()
        assert (found.payload, found.properties.SubscriptionIdentifier) == (b"while it was away", [3])
        receiver.close()
        wait_until(lambda: not named_subscriptions(gateway.socket), "the session's subscription has ended")
        assert not Caller5(gateway.port, "audit", is_clean=False).is_known


def named_subscriptions(socket: str) -> list[str]:
    """The names of the daemon's durable subscriptions."""
    return [each["name"] for each in json.loads(peerd("subs", "list", "--socket", socket, "-o", "json").stdout)]


def test_a_durable_session_outlives_client_and_gateway(tmp_path: Path) -> None:
    with site(tmp_path) as (socket, gateway):
        sender = Caller(gateway.port)
        receiver = Caller(gateway.port, "audit", is_clean=False)
        assert not receiver.is_known
        assert receiver.subscribe("machines/#") == [1]
        sender.publish("machines/a/x", "1")
        assert receiver.next()[:2] == ("machines/a/x", b"1")
        receiver.close()
        sender.publish("machines/a/x", "2")
        sender.close()
        assert gateway.stop() == 0
        again = GatewayProcess(tmp_path, socket)
        try:
            receiver = Caller(again.port, "audit", is_clean=False)
            assert receiver.is_known
            while (got := receiver.next())[1] != b"2":  # an acknowledgement may have been lost with the connection
                assert got[1] == b"1"
            receiver.close()
        finally:
            again.process.kill()


@pytest.mark.skipif(shutil.which("mosquitto_pub") is None, reason="mosquitto-clients is not installed")
@pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
def test_mosquittos_commands(version: str, tmp_path: Path) -> None:
    def is_subscribed() -> bool:
        listed = json.loads(peerd("subs", "list", "--socket", socket, "-o", "json").stdout)
        return any(each["state"] in ("received", "replicated") for each in listed)

    with site(tmp_path) as (socket, gateway):
        port = ("-p", str(gateway.port), "-V", version)
        command = ["mosquitto_sub", *port, "-v", "-q", "1", "-C", "2", "-W", "100", "-t", "machines/+/cpu"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as subscriber:
            wait_until(is_subscribed, "the subscription is installed")
            for topic, payload, qos in (("web1/cpu", "a", 0), ("web1/disk", "b", 1), ("web2/cpu", "c", 2)):
                words = ["-t", f"machines/{topic}", "-m", payload, "-q", str(qos)]
                subprocess.run(["mosquitto_pub", *port, *words], check=True, timeout=WAIT_S)
            found = subscriber.communicate(timeout=2 * WAIT_S)[0].splitlines()
        assert found == ["machines/web1/cpu a", "machines/web2/cpu c"]
        if version != "mqttv5":
            return
        said = ["-D", "publish", "content-type", "text/plain", "-D", "publish", "user-property", "trace", "7"]
        words = ["-t", "machines/web1/cpu", "-m", "kept", "-q", "1", "-r", *said]
        subprocess.run(["mosquitto_pub", *port, *words], check=True, timeout=WAIT_S)
        command = ["mosquitto_sub", *port, "-q", "1", "-C", "1", "-W", "100", "-t", "machines/web1/+"]
        shown = subprocess.run([*command, "-F", "%r %p %C %P"], capture_output=True, text=True, timeout=2 * WAIT_S)
        assert shown.stdout == "1 kept text/plain trace:7\n", shown.stderr
        refused = subprocess.run(
            ["mosquitto_pub", *port, "-q", "1", "-t", "nonsense", "-m", "x"],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )
        assert "Topic Name invalid" in refused.stdout + refused.stderr

"""A quiet Spark session that leaves nothing behind."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from peerd.errors import PeerdError, Unavailable
from peerd.pipeline.connect import connect_session
from peerd.pipeline.requirements import is_connect

LOCAL_SETTINGS: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "4",
}
"""Spark's default of 200 partitions is for clusters; with logs of megabytes an empty one costs more than the data."""
QUICK_JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
QUICK_SETTINGS: Final = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
"""One task a step, no Java written and compiled for each expression, no plan made anew from what a step gave."""
SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""The environment variable with which Spark tells a program where its JVM is."""
OF_THE_JVM: Final = ("spark.master", "spark.driver.memory", "spark.driver.extraJavaOptions")
"""What has been said when a program is submitted."""
JVM_DEATH_S: Final = 2.0
"""A JVM that is dying has ended by then."""
JVM_EXIT_TIMEOUT_S: Final = 10.0
CAUSES_MAX: Final = 8
LOG_TAIL_BYTES: Final = 2000

_LOG4J: Final = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
"""


@contextlib.contextmanager
def spark_session(
    master: str = "local[2]",
    driver_memory: str = "1g",
    *,
    is_quick: bool = False,
    settings: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """A session on ``master`` for the length of a ``with`` block; one at a time in a process.

    A server of Spark Connect has a JVM, and what is said here of one is not of it: see `connect_session`.

    In a program that `spark-submit` has started, its session is used: it has said which master, and how much memory.

    On this machine (``local``) Spark is reached from nowhere else, and nothing that is configured for others has a say;
    on a cluster what ``spark-defaults.conf`` says holds. ``settings``: Spark's own, which come before all others.

    What the JVM prints goes to a file, of which the end is shown when it does not start. All of Spark's files
    (shuffle, warehouse, derby) are in a temporary directory that is removed at the end, with the JVM gone.

    ``is_quick`` is for input of some megabytes: Spark then spends most of its time compiling for data that never comes,
    so optimising compilers stay off (half the time and CPU on small logs, slower on large ones).

    Raises `Unavailable` when the JVM does not start, `PeerdError` for what Spark reports inside the block.
    """
    if is_connect(master):
        wanted = {**(QUICK_SETTINGS if is_quick else {}), **(settings or {})}
        with _interrupts_noted() as interrupts, connect_session(master, wanted) as session:
            interrupts.are_held = False
            yield session
        return
    with (
        tempfile.TemporaryDirectory(prefix="peerd-spark-") as scratch,
        _environment(scratch, is_local(master)),
        _quiet_py4j(),
        _interrupts_noted() as interrupts,
    ):
        folder = Path(scratch)
        (folder / "log4j2.properties").write_text(_LOG4J)
        conf = _conf(master, driver_memory, is_quick, folder, settings or {})
        log_path = folder / "jvm.log"
        gateway = _launched(conf, log_path)
        process = cast("subprocess.Popen[bytes] | None", gateway.proc)
        try:
            interrupts.are_held = False
            yield from _context(conf, gateway, interrupts)
            interrupts.check()
        except (Py4JError, ConnectionError) as error:
            if process is None or _lives_on(process):
                raise PeerdError(f"Spark failed: {_first_line(error)}") from error
            raise PeerdError(
                f"Spark's JVM has ended ({_why_it_ended(log_path)}). It may have more memory: --driver-memory"
            ) from error
        except KeyboardInterrupt:
            # The JVM has nothing to finish, and py4j cannot go on after an interrupted call.
            if process is not None:
                process.kill()
            raise
        finally:
            # pyspark keeps the gateway as long as the process lives; the next session must not find a stopped one.
            SparkContext._gateway = None
            SparkContext._jvm = None
            SparkContext._active_spark_context = None
            gateway.shutdown()
            if process is not None:
                _end(process)


def _lives_on(process: subprocess.Popen[bytes]) -> bool:
    """Whether it still runs a while after its connection broke, which comes before its end."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(JVM_DEATH_S)
    return process.poll() is None


def _launched(conf: SparkConf, log_path: Path) -> Any:
    """Start a JVM, which prints to a file; returns its gateway. Raises `Unavailable` with the end of that file."""
    with log_path.open("wb") as log:
        try:
            return cast(Callable[..., Any], launch_gateway)(conf, {"stdout": log, "stderr": log})
        except (PySparkRuntimeError, OSError) as error:
            tail = log_path.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()
            raise Unavailable(f"Spark's JVM did not start ({error}). It said:\n{tail}") from error


def _context(conf: SparkConf, gateway: Any, interrupts: _Interrupts) -> Iterator[SparkSession]:
    """Yield the session over a running JVM. After an interrupt it is not stopped, which would call the JVM again."""
    interrupts.check()
    with _interrupts_kept():
        context = SparkContext(conf=conf, gateway=gateway)
    # Where workers' counts arrive: it prints a traceback when the JVM is gone, at whatever time.
    cast(Any, context)._accumulatorServer.handle_error = lambda request, address: None
    try:
        context.setLogLevel("ERROR")
        session = SparkSession(context)
        interrupts.check()
        yield session
    except (PySparkException, Py4JJavaError) as error:
        told = _first_line(error)  # the JVM knows it, until the context is stopped
        context.stop()
        raise PeerdError(f"Spark failed: {told}") from error
    except Exception:
        with contextlib.suppress(Py4JError, OSError):  # of a JVM that is gone; what went wrong is told
            context.stop()
        raise
    context.stop()


class _Interrupts:
    """Ctrl-C: it is noted, and raised.

    An exception is lost where Python finalises an object, and py4j has a finaliser for each that it got from the JVM.
    So whoever is about to say that all went well looks at the note.
    """

    def __init__(self) -> None:
        self.are_held = True
        """They are only noted: raised while the JVM is launched, they would leave it running."""
        self._has_come = False

    def came(self, number: int, frame: object) -> None:
        """See `signal.signal`."""
        self._has_come = True
        if not self.are_held:
            raise KeyboardInterrupt

    def check(self) -> None:
        """Raise what has been noted."""
        if self._has_come:
            raise KeyboardInterrupt


@contextlib.contextmanager
def _interrupts_noted() -> Iterator[_Interrupts]:
    """Note Ctrl-C meanwhile, and what a service manager sends to stop a program, where they are not ignored. Other
    threads than the main one never get them."""
    interrupts = _Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    noted = [number for number, handler in previous.items() if handler is not signal.SIG_IGN]
    for number in noted:
        signal.signal(number, interrupts.came)
    try:
        yield interrupts
    finally:
        for number in noted:
            signal.signal(number, previous[number])


@contextlib.contextmanager
def _interrupts_kept() -> Iterator[None]:
    """Keep the handler of Ctrl-C: SparkContext would replace it by one that calls the JVM in the middle of a call."""
    previous = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, previous)


@contextlib.contextmanager
def _quiet_py4j() -> Iterator[None]:
    """Silence py4j, which logs a traceback for every interrupted call; the exception says enough.

    It uses loggers of its own, and now and then the root logger.
    """

    def is_not_py4j(record: logging.LogRecord) -> bool:
        return "py4j" not in Path(record.pathname).parts

    root, own = logging.getLogger(), logging.getLogger("py4j")
    level = own.level
    root.addFilter(is_not_py4j)
    own.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        own.setLevel(level)
        root.removeFilter(is_not_py4j)


def is_submitted() -> bool:
    """Whether `spark-submit` has started this program, and so its JVM."""
    return SUBMITTED in os.environ


def is_local(master: str) -> bool:
    """Whether this master is this process alone. (``local-cluster`` has workers of its own; of a program that was
    submitted, `spark-submit` knows.)"""
    return not is_submitted() and re.fullmatch(r"local(\[[^]]*\])?", master) is not None


def _conf(master: str, driver_memory: str, is_quick: bool, scratch: Path, own: Mapping[str, str]) -> SparkConf:
    java_options = (
        f"-Dlog4j2.configurationFile={(scratch / 'log4j2.properties').as_uri()} "
        f"-Dderby.system.home={scratch / 'derby'} -Djava.io.tmpdir={scratch}"
    )
    settings = {
        "spark.app.name": "peerd analyze",
        "spark.master": master,
        "spark.driver.memory": driver_memory,
        "spark.driver.extraJavaOptions": java_options,
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if is_local(master):
        settings |= LOCAL_SETTINGS | {"spark.local.dir": str(scratch)}  # workers elsewhere have folders of their own
    if is_quick:
        settings["spark.driver.extraJavaOptions"] += f" {QUICK_JAVA_OPTIONS}"
        settings |= QUICK_SETTINGS
    conf = SparkConf(loadDefaults=not is_local(master))
    for key, value in {**settings, **own}.items():
        if key not in OF_THE_JVM or not is_submitted():
            conf.set(key, value)
    return conf


@contextlib.contextmanager
def _environment(scratch: str, is_local_master: bool) -> Iterator[None]:
    """Set what only environment variables can say while the JVM starts, and put the old values back afterwards."""
    wanted = {"SPARK_LOCAL_DIRS": scratch}
    if is_local_master:
        # Workers would run any other Python that is first on the path.
        wanted |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _end(process: subprocess.Popen[bytes]) -> None:
    """Close the JVM's standard input, at which it ends; if it does not, kill it."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(JVM_EXIT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _why_it_ended(log: Path) -> str:
    """The line with which a JVM tells why it cannot go on, or the last one."""
    lines = log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip().splitlines()
    told = next((line for line in lines if "OutOfMemoryError" in line), lines[-1] if lines else "it said nothing")
    return told.strip()


def _first_line(error: Exception) -> str:
    """What went wrong, and what led to it, each in one line."""
    told: list[str] = []
    cause = error.java_exception if isinstance(error, Py4JJavaError) else None
    while cause is not None and len(told) < CAUSES_MAX:
        told.append(str(cause.getMessage() or cause.getClass().getName()))
        cause = cause.getCause()
    lines = (text.strip().splitlines() for text in told or [str(error)])
    return "; ".join(dict.fromkeys(text[0] for text in lines if text)) or type(error).__name__

"""A session on a Spark that is reached by Spark Connect (``sc://host:port``): neither Java here nor a JVM to call."""

from __future__ import annotations

import os
import re
import socket
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from peerd.errors import PeerdError, Unavailable

PORT: Final = 15002
"""Where a server listens that was told nothing else."""
REACHED_WITHIN_S: Final = 10.0
RETRIES_MAX: Final = 5
"""A server that is away is asked so often again, some 20 seconds long; of its own accord Spark would for ten minutes.
"""
MODE: Final = "SPARK_CONNECT_MODE_ENABLED"
"""The environment variable by which functions such as ``F.col`` know that there is no JVM."""
SETTINGS: Final = {"spark.sql.session.timeZone": "UTC", "spark.sql.ansi.enabled": "true"}
NAME: Final = "spark.app.name"
"""Of the server, which has one already."""


def is_connected(spark: SparkSession) -> bool:
    """Whether this session is one of `connect_session`."""
    return "connect" in type(spark).__module__


@contextmanager
def connect_session(master: str, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """A session of the server at ``master`` for the length of a ``with`` block. ``settings``: those of Spark SQL.

    Raises `Unavailable` where no such server is, `PeerdError` for what Spark reports inside the block.
    """
    _check_there(master)
    from pyspark.sql.connect.client.retries import DefaultPolicy
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    with warnings.catch_warnings(), _marked():
        warnings.filterwarnings("ignore", r"\[RETRIES_EXCEEDED\]")  # the error that follows says more
        try:
            session: Any = ConnectSession(master)
        except PySparkException as error:
            raise Unavailable(f"{_without_token(master)}: no address such as sc://host:{PORT}") from error
        try:
            session.client.set_retry_policies([DefaultPolicy(max_retries=RETRIES_MAX)])
            for key, value in {**SETTINGS, **settings}.items():
                if key != NAME:
                    session.conf.set(key, value)
            ConnectSession._set_default_and_active_session(session)
            yield session
        except PySparkException as error:
            raise PeerdError(f"Spark failed: {_first_line(error)}") from error
        finally:
            session.stop()  # what still runs of it ends


@contextmanager
def _marked() -> Iterator[None]:
    """Have Spark's functions know meanwhile that there is no JVM."""
    before = os.environ.get(MODE)
    os.environ[MODE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[MODE]


def _check_there(master: str) -> None:
    """Raise `Unavailable` unless something listens there."""
    try:
        url = urlsplit(master)
        address = (url.hostname or "", url.port or PORT)
    except ValueError as error:
        raise Unavailable(f"{_without_token(master)}: {error}") from error
    try:
        socket.create_connection(address, REACHED_WITHIN_S).close()
    except OSError as error:
        raise Unavailable(f"no Spark Connect at {address[0]}:{address[1]}: {error.strerror or error}") from error


def _without_token(master: str) -> str:
    """An address as it may be shown."""
    return master.partition("/;")[0]


def _first_line(error: PySparkException) -> str:
    """What went wrong; of a connection that failed, what gRPC says of it."""
    told = str(error).strip()
    of_grpc = re.search(r'details = "(.*)"', told)
    return of_grpc[1] if of_grpc else (told or type(error).__name__).splitlines()[0]

"""Checks what the pipeline needs besides Python, before pyspark is imported."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from peerd.errors import Unavailable

CONNECT: Final = "sc://"
"""With this begins the address of a server of Spark Connect."""
CONNECT_NEEDS: Final = ("grpc", "grpc_status", "zstandard")
"""Modules that pyspark needs for that, and does not bring."""
JAVA_VERSION_MIN: Final = 17
JAVA_TIMEOUT_S: Final = 20.0
JAVA_ADVICE: Final = (
    f"Spark needs Java {JAVA_VERSION_MIN} or newer: install a JRE (Debian and Ubuntu: apt-get install "
    f"openjdk-{JAVA_VERSION_MIN}-jre-headless) or point JAVA_HOME at one"
)


def is_connect(master: str) -> bool:
    """Whether this master is a server of Spark Connect, which has Java."""
    return master.startswith(CONNECT)


def check_requirements(master: str = "local") -> None:
    """Raise `Unavailable`, saying what to install, unless pyspark and what it needs for this master are here."""
    extra = "connect" if is_connect(master) else "spark"
    if importlib.util.find_spec("pyspark") is None:
        raise Unavailable(f"pyspark is not installed: pip install 'peerd[{extra}]'")
    if not is_connect(master):
        check_java()
    elif any(importlib.util.find_spec(module) is None for module in CONNECT_NEEDS):
        raise Unavailable("Spark Connect needs more than pyspark: pip install 'peerd[connect]'")


def check_delta() -> None:
    """Raise `Unavailable`, saying what to install, unless tables of Delta Lake can be written."""
    if importlib.util.find_spec("deltalake") is None:
        raise Unavailable("deltalake is not installed: pip install 'peerd[delta]'")


def check_java() -> int:
    """Return the major version of the Java that Spark will use. Raises `Unavailable` if it is missing or too old."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None:
        raise Unavailable(f"there is no java on the path. {JAVA_ADVICE}")
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=JAVA_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{java} does not run ({error}). {JAVA_ADVICE}") from error
    version = java_major(done.stderr + done.stdout)
    if version is None or version < JAVA_VERSION_MIN:
        found = f"is Java {version}" if version is not None else "does not say which version it is"
        raise Unavailable(f"{java} {found}. {JAVA_ADVICE}")
    return version


def java_major(text: str) -> int | None:
    """Read the major version: 17 from ``openjdk version "17.0.15" ...``, 8 from ``java version "1.8.0_392"``."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if found is None:
        return None
    first = int(found[1])
    return int(found[2]) if first == 1 and found[2] else first

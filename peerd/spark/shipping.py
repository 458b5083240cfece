"""peerd for workers of Spark that have none, or another version: the content of its wheel, made of what runs here.

What it needs of others is not in it: workers have that, or get it with an archive (deploy/spark/environment.sh).
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING, Final
from zipfile import ZIP_DEFLATED, ZipFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGES: Final = ("peerd", "protocols")
NOTES: Final = {"METADATA": ("METADATA", "PKG-INFO"), "entry_points.txt": ("entry_points.txt",)}
"""What an installation tells of itself, and the names that it may have."""


def ship(spark: SparkSession, folder: Path) -> None:
    """Give the workers of this session the peerd that runs here; it comes before one that they have.

    Its archive goes into ``folder``, where workers may fetch it as long as the session is.
    """
    spark.addArtifacts(str(pack(folder)), pyfile=True)


def pack(folder: Path) -> Path:
    """Write the archive into a folder; returns its path."""
    installed = distribution("peerd")
    path = folder / f"peerd-{installed.version}.zip"
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        for name in PACKAGES:
            for file, inside in _files(name):
                archive.write(file, inside)
        for note, names in NOTES.items():
            text = next(filter(None, map(installed.read_text, names)), None)
            if text is not None:
                archive.writestr(f"peerd-{installed.version}.dist-info/{note}", text)
    return path


def _files(package: str) -> Iterator[tuple[Path, str]]:
    """The files of a package, and where they are inside an archive."""
    root = Path(next(iter(import_module(package).__path__)))
    for file in sorted(root.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            yield file, str(Path(package, file.relative_to(root)))

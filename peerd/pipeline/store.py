"""Parquet tables side by side in one folder, of any file system that Spark writes to."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from peerd.errors import Unavailable
from peerd.pipeline.sources import check_apart, has_scheme, plain

NOT_THERE: Final = ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA")
"""What Spark says of a table whose folder is not there, or empty."""
LOG: Final = "_delta_log"
"""In the folder of a table of Delta Lake."""


class TableStore:
    """The tables in ``out``, a path with or without a scheme. One that is there is written over."""

    def __init__(self, spark: SparkSession, out: str) -> None:
        self._spark, self._out = spark, out.rstrip("/") or "/"

    def path(self, name: str) -> str:
        """Where a table is."""
        return f"{self._out}/{name}"

    def check_apart(self, files: Iterable[str], names: Iterable[str]) -> None:
        """Raise `Unavailable` where a table would be written over one of these files."""
        check_apart({name: plain(self._qualified(name)) for name in names}, map(plain, files))

    def write(self, name: str, table: DataFrame) -> DataFrame:
        """Write a table; returns it as it is read from there, so that nothing is computed twice."""
        table.write.mode("overwrite").parquet(self.path(name))
        return self.read(name)

    def draft(self, name: str, table: DataFrame) -> None:
        """Write a table that `read` gives, and for which `settle` or `rewrite` will be called."""
        self.write(name, table)

    def settle(self, name: str) -> None:
        """Let a draft be the table for everybody."""

    def read(self, name: str, columns: StructType | None = None) -> DataFrame:
        """A table that is there; with these columns, if they are told, which not all of its files need to have."""
        reader = self._spark.read if columns is None else self._spark.read.schema(columns)
        return reader.parquet(self.path(name))

    def read_merged(self, names: Iterable[str]) -> DataFrame:
        """Some tables as one, with all columns that any of their files has."""
        return self._spark.read.option("mergeSchema", "true").parquet(*map(self.path, names))

    def frame(self, rows: Iterable[tuple[object, ...]], columns: str) -> DataFrame:
        """Some rows, which are in no table."""
        return self._spark.createDataFrame(list(rows), columns)

    def rewrite(self, name: str, table: DataFrame) -> DataFrame:
        """Put this in the place of a table, of which it may be made."""
        new = _beside(name)
        self.write(new, table)
        self.remove(name)
        self.rename(new, name)
        self._spark.catalog.refreshByPath(self.path(name))
        return self.read(name)

    def recovered(self, name: str, columns: StructType, folders: Collection[str]) -> None:
        """Be told that a table that grows has these columns, and these folders inside its own."""
        self.remove(f"{name}/{LOG}")  # of another run, and not true any more

    def changed(self, name: str, folders: Collection[str]) -> None:
        """Be told in which folders of a table that grows files are new or gone, the folders themselves perhaps."""

    def rename(self, name: str, final: str) -> None:
        """Give a table its final name. Raises `Unavailable` where that cannot be done."""
        system, path = self._file_system(name)
        if not system.rename(path, self._java_path(final)):
            raise Unavailable(f"{self.path(name)} cannot be renamed to {final}: the table is there, under that name")

    def remove(self, name: str) -> None:
        """Remove a table, if it is there."""
        system, path = self._file_system(name)
        system.delete(path, True)

    def exists(self, name: str) -> bool:
        """Whether there is such a file or folder."""
        system, path = self._file_system(name)
        return bool(system.exists(path))

    def inside(self, name: str) -> dict[str, int]:
        """What a table's folder has in it, files and folders, with the bytes of each."""
        system, path = self._file_system(name)
        if not system.exists(path):
            return {}
        found = [each.getPath() for each in system.listStatus(path)]
        return {str(each.getName()): int(system.getContentSummary(each).getLength()) for each in found}

    # Hadoop's file systems, which Spark has no words of its own for

    def _java_path(self, name: str) -> Any:
        jvm: Any = self._spark._jvm
        return jvm.org.apache.hadoop.fs.Path(self.path(name))

    def _file_system(self, name: str) -> tuple[Any, Any]:
        path = self._java_path(name)
        return path.getFileSystem(self._spark._jsparkSession.sessionState().newHadoopConf()), path

    def _qualified(self, name: str) -> str:
        system, path = self._file_system(name)
        return str(system.makeQualified(path).toString())


class ConnectStore(TableStore):
    """Tables over Spark Connect, which has no words for removing and renaming: what is to be gone is left empty.

    Raises `Unavailable` for a path that would mean another folder there than here.
    """

    def __init__(self, spark: SparkSession, out: str) -> None:
        super().__init__(spark, out)
        if not (out.startswith("/") or has_scheme(out)):
            raise Unavailable(f"{out}: Spark Connect writes where its server is: give the whole path")

    def check_apart(self, files: Iterable[str], names: Iterable[str]) -> None:
        """See `TableStore.check_apart`. A path without a scheme is taken to be of the file system of each file."""
        plains = (plain(file) if has_scheme(self._out) else re.sub(r"^\w+://[^/]*", "", plain(file)) for file in files)
        check_apart({name: plain(self.path(name)) for name in names}, plains)

    def rewrite(self, name: str, table: DataFrame) -> DataFrame:
        """See `TableStore.rewrite`: the table is written twice."""
        new = _beside(name)
        written = self.write(name, self.write(new, table))
        self.remove(new)
        return written

    def remove(self, name: str) -> None:
        """Leave a table with no row, if it is there."""
        try:
            columns = self.read(name).schema
        except AnalysisException as error:
            if error.getCondition() not in NOT_THERE:
                raise
            return
        self._spark.createDataFrame([], columns).write.mode("overwrite").parquet(self.path(name))


def _beside(name: str) -> str:
    """Where a table is written that will take the place of another."""
    folder, _, last = name.rpartition("/")
    return f"{folder}/_new_{last}" if folder else f"_new_{last}"

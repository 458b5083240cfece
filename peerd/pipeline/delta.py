"""Tables of Delta Lake: whoever reads one meanwhile sees all of an earlier version of it, or all of the newest.

Spark writes the files, and `deltalake` the log that says which of them are the table, so no jar of Delta's is needed. A
table that is written anew gets a folder of its own for each version, ``v-...``, and keeps the files of the version
before it for those who read them. One that grows (`peerd.pipeline.batches`) has the folders that it has without Delta.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Final
from urllib.parse import unquote

from deltalake import DeltaTable, Field, Schema
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions
from pyspark.sql import DataFrame, SparkSession, functions as F
from pyspark.sql.types import StringType, StructField, StructType, VariantType

from peerd.errors import PeerdError
from peerd.pipeline.store import LOG, TableStore

VERSION: Final = "v-"


class DeltaStore(TableStore):
    """See the module. A name with a slash is of a part of a table that grows, and in the log after `changed`."""

    def __init__(self, spark: SparkSession, out: str) -> None:
        super().__init__(spark, out)
        self._drafts: dict[str, str] = {}
        """The folders of versions that are in no log yet, by table."""

    def write(self, name: str, table: DataFrame) -> DataFrame:
        """See `TableStore.write`."""
        if "/" in name:
            return super().write(name, _without_variants(table))
        self.draft(name, table)
        self.settle(name)
        return self.read(name)

    def draft(self, name: str, table: DataFrame) -> None:
        """See `TableStore.draft`."""
        version = f"{VERSION}{uuid.uuid4().hex[:12]}"
        super().write(f"{name}/{version}", _without_variants(table))
        self._drafts[name] = version

    def settle(self, name: str) -> None:
        """See `TableStore.settle`."""
        before, version = self._logged(name), self._drafts[name]
        with self._failures_told(name):
            self._replace(name, self.read(name).schema, self._files(name, [version]))
        del self._drafts[name]
        kept = {LOG, version, *(path.partition("/")[0] for path in before)}
        for other in self.inside(name):
            if other not in kept:
                self.remove(f"{name}/{other}")

    def read(self, name: str, columns: StructType | None = None) -> DataFrame:
        """See `TableStore.read`."""
        if name in self._drafts:
            return super().read(f"{name}/{self._drafts[name]}")
        if "/" in name:
            return super().read(name, columns)
        if columns is not None:
            return super().read(name, StructType([_text_field(field) for field in columns.fields]))
        table = DeltaTable(self._uri(name))
        schema = StructType.fromJson(json.loads(table.schema().to_json()))
        files = [f"{self.path(name)}/{path}" for path in self._logged(name)]
        return self._spark.read.schema(schema).parquet(*files) if files else self._spark.createDataFrame([], schema)

    def rewrite(self, name: str, table: DataFrame) -> DataFrame:
        """See `TableStore.rewrite`."""
        return super().rewrite(name, table) if "/" in name else self.write(name, table)

    def recovered(self, name: str, columns: StructType, folders: Collection[str]) -> None:
        """See `TableStore.recovered`."""
        schema = StructType([_text_field(field) for field in columns.fields])
        with self._failures_told(name):
            if not DeltaTable.is_deltatable(self._uri(name)):
                create_table_with_add_actions(self._uri(name), _delta_schema(schema), [], name=name)
            table = DeltaTable(self._uri(name))
            known = {field.name for field in table.schema().fields}
            if new := [field for field in _delta_schema(schema).fields if field.name not in known]:
                table.alter.add_columns([Field(each.name, each.type) for each in new])
            self._put(name, self._logged(name), self._files(name, folders))

    def changed(self, name: str, folders: Collection[str]) -> None:
        """See `TableStore.changed`."""
        with self._failures_told(name):
            before = [path for path in self._logged(name) if path.partition("/")[0] in folders]
            self._put(name, before, self._files(name, [each for each in folders if self.exists(f"{name}/{each}")]))

    def _replace(self, name: str, schema: StructType, files: Sequence[AddAction]) -> None:
        """One commit with which these files are the table."""
        uri, columns = self._uri(name), _delta_schema(schema)
        if DeltaTable.is_deltatable(uri):
            DeltaTable(uri).create_write_transaction([*files], "overwrite", columns)
        else:
            create_table_with_add_actions(uri, columns, [*files], name=name)

    def _put(self, name: str, before: Collection[str], files: list[AddAction]) -> None:
        """One commit with which these files are in the place of those before, if they are others."""
        now = {file.path for file in files}
        at_ms = int(1000 * time.time())
        gone = [RemoveAction(path, True, at_ms, partition_values={}) for path in before if path not in now]
        new = [file for file in files if file.path not in before]
        if gone or new:
            table = DeltaTable(self._uri(name))
            table.create_write_transaction([*new, *gone], "append", table.schema())

    def _logged(self, name: str) -> list[str]:
        """The files that are the table, by their paths in its folder."""
        if not DeltaTable.is_deltatable(self._uri(name)):
            return []
        return [str(path) for path in DeltaTable(self._uri(name)).get_add_actions().column("path").to_pylist()]

    def _files(self, name: str, folders: Collection[str]) -> list[AddAction]:
        """The files with rows in some of the table's folders. Their bytes and rows are what Spark says of them."""
        if not folders:
            return []
        rows = self._spark.read.format("parquet").load([self.path(f"{name}/{folder}") for folder in folders])
        at_ms = int(1000 * time.time())
        found = rows.groupBy(F.col("_metadata.file_path"), F.col("_metadata.file_size")).count().collect()
        return [
            AddAction("/".join(unquote(path).split("/")[-2:]), size, {}, at_ms, True, json.dumps({"numRecords": count}))
            for path, size, count in found
        ]

    def _uri(self, name: str) -> str:
        """Where a table is, in words of `deltalake`."""
        path = self.path(name)
        return path.removeprefix("file://") if path.startswith("file:/") else path.replace("s3a:", "s3:", 1)

    @contextmanager
    def _failures_told(self, name: str) -> Iterator[None]:
        try:
            yield
        except (DeltaError, OSError) as error:
            raise PeerdError(f"{self.path(name)}: its Delta log cannot be written ({error})") from error


def _without_variants(table: DataFrame) -> DataFrame:
    """The table with each VARIANT as the JSON that it is, since few who read Delta tables know one."""
    variants = [field.name for field in table.schema.fields if isinstance(field.dataType, VariantType)]
    return table.withColumns({name: F.to_json(name) for name in variants})


def _text_field(field: StructField) -> StructField:
    return StructField(field.name, StringType()) if isinstance(field.dataType, VariantType) else field


def _delta_schema(columns: StructType) -> Schema:
    """Delta writes a schema as Spark does."""
    return Schema.from_json(columns.json())

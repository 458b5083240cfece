"""Tables of `peerd analyze` as they are on the disk of this machine: plain Parquet, or those of Delta Lake."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Final

from peerd.errors import PeerdError, Unavailable

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset

DELTA_LOG: Final = "_delta_log"


def open_table(path: Path) -> Dataset:
    """The table in this folder, with a column for what folders inside it are named after.

    Raises `Unavailable` where something has to be installed for it, `PeerdError` where it cannot be read.
    """
    if importlib.util.find_spec("pyarrow") is None:
        raise Unavailable("tables are read with pyarrow: pip install 'peerd[spark]'")
    from pyarrow import ArrowException, dataset

    if not (path / DELTA_LOG).is_dir():
        try:
            return dataset.dataset(path, format="parquet", partitioning="hive")
        except (ArrowException, OSError) as error:
            raise PeerdError(f"{path} cannot be read: {error}") from error
    if importlib.util.find_spec("deltalake") is None:
        raise Unavailable("Delta tables are read with deltalake: pip install 'peerd[delta]'")
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    try:
        return DeltaTable(path).to_pyarrow_dataset()
    except (DeltaError, OSError) as error:
        raise PeerdError(f"{path} cannot be read: {error}") from error

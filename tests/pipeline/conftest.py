"""One Spark session for all tests of the pipeline: starting it takes some ten seconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from peerd.errors import Unavailable
from peerd.pipeline.requirements import check_requirements

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session on ``local[2]``; skips, saying what to install, where Spark cannot run."""
    try:
        check_requirements()
    except Unavailable as error:
        pytest.skip(reason=str(error))
    from peerd.pipeline.session import spark_session

    with spark_session("local[2]", is_quick=True) as session:
        yield session

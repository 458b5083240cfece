"""One ring of honest daemons for all attacks: whoever comes after an attack finds out what it left behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.ring import Ring, honest_ring
from tests.test_tidy import ROOT


@pytest.fixture(scope="session")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ring]:
    """Start it; the daemons import `tests.hostile`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        with honest_ring(tmp_path_factory.mktemp("hostile")) as found:
            yield found


@pytest.fixture
def own_ring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ring]:
    """Daemons of one test alone, of which it may kill one, or which it leaves unwell for a while."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with honest_ring(tmp_path, nodes=5) as found:
        yield found

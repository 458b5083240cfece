"""A third party's distribution, installed for this process and those that it starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from peerd.entry_points import FRONTS, PLUGINS

ROOT = Path(__file__).resolve().parents[2]


def install(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    modules: Mapping[str, str],
    *,
    plugins: Mapping[str, str],
    fronts: Mapping[str, str] | None = None,
) -> Path:
    """Write modules (name to source) and the metadata of a distribution that has these entry points (name to value).

    Returns the folder that stands for ``site-packages``.
    """
    site = folder / "site"
    information = site / "stranger-1.0.dist-info"
    information.mkdir(parents=True)
    for name, source in modules.items():
        (site / f"{name}.py").write_text(source, "utf-8")
        monkeypatch.delitem(sys.modules, name, raising=False)
    groups = {PLUGINS: plugins, FRONTS: fronts or {}}
    lines = [
        line
        for group, entries in groups.items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in entries.items()), "")
    ]
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n", "utf-8")
    (information / "entry_points.txt").write_text("\n".join(lines), "utf-8")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), str(ROOT)]))
    return site

"""Experiments with streams, and what they are fed with."""

from __future__ import annotations

from typing import Final

from protocols.dissemination.front.lab import codd_experiments

EXPERIMENTS: Final = (*codd_experiments.EXPERIMENTS,)

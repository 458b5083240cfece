"""Experiments with streams, and what they are fed with."""

from __future__ import annotations

from typing import Final

from protocols.dissemination.front.lab import codd_experiments, coherency_experiments

EXPERIMENTS: Final = (*codd_experiments.EXPERIMENTS, *coherency_experiments.EXPERIMENTS)

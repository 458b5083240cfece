"""Experiments with streams, and what they are fed with."""

from __future__ import annotations

from typing import Final

from protocols.dissemination.front.lab import coherency_experiments

EXPERIMENTS: Final = (*coherency_experiments.EXPERIMENTS,)

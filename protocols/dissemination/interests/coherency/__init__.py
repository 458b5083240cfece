"""Interests in the current values of objects, within a tolerance: docs/protocols/coherency-trees.md."""

from protocols.dissemination.interests.coherency.kind import CoherencyKind as CoherencyKind

"""Filtered dissemination: one tree for each stream, whose shape a policy decides (CoDD; coherency-preserving trees)."""

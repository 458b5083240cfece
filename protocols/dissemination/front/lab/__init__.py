"""Experiments with streams, and what they are fed with."""

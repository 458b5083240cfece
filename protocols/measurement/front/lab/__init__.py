"""Experiments with measurement queries: ``peerd lab run measurement``."""

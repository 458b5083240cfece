"""The experiments ``aggregation/...`` of ``peerd lab``."""

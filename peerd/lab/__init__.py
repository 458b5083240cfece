"""Experiments that reproduce the figures of papers in the simulator: ``peerd lab``. See docs/lab.md."""

"""Caches between owners and those who ask: where they are, and how questions find them (chapters 3 and 4)."""

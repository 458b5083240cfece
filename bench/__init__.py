"""Measurements of peerd, each beside something to compare it with: ``python -m bench``, or ``make bench``.

Every section repeats its measurements, those of peerd and of the other in turn, so that a busy or slower machine
affects both. `docs/benchmarks.md` says what each row means.
"""

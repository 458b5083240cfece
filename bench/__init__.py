"""Measurements of peerd beside what they are to be compared with: ``python -m bench``, or ``make bench``.

Every section repeats its measurements, those of peerd and those beside it in turn, so that a machine that is busy or
that slows down does so to both. `docs/benchmarks.md` says what each row means.
"""

"""Queries about measurements (chapter 6): a statement, what it reads, and its answer in T+, T? and T-. Pure."""

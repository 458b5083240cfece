"""Clients of measurement queries, and a Prometheus beside them."""

"""Bulk transfer: two peers exchange large values over a connection of their own. Sans-IO; docs/swap.md explains it."""

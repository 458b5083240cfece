"""Measurement queries with guaranteed bounds (Chandramouli): see docs/architecture.md for the rooms of a protocol."""

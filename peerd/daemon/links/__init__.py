"""Connections to other daemons: dialling, listening, control links and bulk streams."""

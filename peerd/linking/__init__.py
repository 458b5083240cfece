"""Decides about links between peers: sans-IO, the same objects in the daemon and in the simulator."""

"""Bytes in, events out: frames and the handshake. Sans-IO; both Hosts and the tests drive the same objects."""

"""Kinds of interest: what a member may ask of a stream, how it is matched, and which interest contains which."""

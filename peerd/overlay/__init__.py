"""Pastry with b = 4: the ring, routing, joins and repair. Sans-IO."""

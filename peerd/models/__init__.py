"""What travels as JSON between a daemon and its clients."""

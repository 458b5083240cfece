"""The overlay's experiments."""

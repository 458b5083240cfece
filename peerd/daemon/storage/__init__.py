"""What a daemon keeps on disk."""

"""The replicated key-value store: soft state of plugins, kept on the replica set of each key (docs/records.md)."""

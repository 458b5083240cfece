"""What happens at a leaf: events are matched, acknowledged, held by others, and brought to their subscribers."""

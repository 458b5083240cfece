"""Standing aggregates of a region, reckoned inside the tree T: each node speaks for its subtree, within bounds."""

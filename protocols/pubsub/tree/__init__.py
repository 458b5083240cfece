"""The distributed 2d-tree: its cells, those that this node is the root of, and what is kept in them."""

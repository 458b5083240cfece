"""The distributed 2d-tree: the cells that this node is the root of, and what is kept in them."""

"""Networks for the simulator: distances between sites, graphs, and measured sets."""

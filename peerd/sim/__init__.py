"""The simulator: a deterministic Host. One seed is one run.

An event heap with a virtual clock, a model network and no event loop at all; the nodes on it are the very objects that
the daemon runs. `peerd.sim.simulation.Simulation` is the way in.
"""

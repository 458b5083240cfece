"""The simulator: a deterministic Host. One seed is one run.

It has an event heap with a virtual clock, a model network and no event loop at all; its nodes are the same objects that
the daemon runs. Begin with `peerd.sim.simulation.Simulation`.
"""

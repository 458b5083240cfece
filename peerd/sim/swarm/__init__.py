"""Random scenarios from seeds, with faults and work, judged by the checkers."""

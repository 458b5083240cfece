"""The evaluation of the thesis (Li 2008, chapter 4), in the simulator."""

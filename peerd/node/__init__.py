"""One node: its composition, and the dispatch of events to its parts."""

"""Roll call: which nodes are there, and since when? A whole plugin of peerd, made to be copied."""

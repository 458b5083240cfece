"""Where an event is published, and its way to the leaves: its publisher's side, and every node on the way."""

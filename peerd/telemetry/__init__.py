"""Everything that peerd reports about itself: the event schema, the sinks of events, logs and metrics."""

"""Everything that peerd tells about itself: the event schema, the sinks of events, logs and metrics."""

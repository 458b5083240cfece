"""What peerd tells about itself: the event schema, sinks, logs and metrics."""

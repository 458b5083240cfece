"""A gateway for MQTT clients: a process of its own, which asks the daemon as any client does."""

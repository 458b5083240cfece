"""Publish/subscribe beside brokers: the same trades and interests for peerd, NATS and Mosquitto."""

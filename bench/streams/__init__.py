"""Streams beside brokers: the same XML documents and XPath queries for peerd, NATS and Mosquitto."""

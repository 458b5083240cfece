"""Event logs of many daemons in one directory: the sink of daemons (`client`), and what stores it (`server`)."""

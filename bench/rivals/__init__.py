"""Systems that do the same work side by side: peerd, and brokers whose subscribers get everything and filter it."""

"""Questions of operators that walk the ring: check, ping, reach."""

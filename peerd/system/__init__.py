"""What the operating system is asked for: files that survive a crash, sockets, resources, the service manager."""

"""The experiments that measure the overlay."""

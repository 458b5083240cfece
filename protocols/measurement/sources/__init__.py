"""What a node measures of itself: where values come from, how they are smoothed, and what is remembered of them."""

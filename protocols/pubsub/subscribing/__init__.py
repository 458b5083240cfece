"""The subscriptions of this node's clients: where each is kept, and how its events come to their readers."""

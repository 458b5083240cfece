"""What a node knows of the items that went by: from this, policies tell who wants the same."""

"""Cost-based policies (Zhou, Ooi and Tan 2008): a node's place is where the values that it holds are false least."""

"""CoDD's policies (Anand and Chawathe): a node's place is where its parent wants most of the same items anyway."""

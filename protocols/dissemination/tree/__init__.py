"""The mechanism: who sends what to whom in one stream, without loss while the tree changes. No policy is in here."""

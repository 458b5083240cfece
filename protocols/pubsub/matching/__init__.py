"""Where an event is matched: at the leaves of this node.

`leaf_events` takes an event that has come to leaves, matches it once, and has it delivered (`delivering`) and
acknowledged. `index` finds which subscriptions it matches. `filter_work` says what reading a filter may cost.
"""

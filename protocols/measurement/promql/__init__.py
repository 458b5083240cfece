"""A subset of PromQL, the query language of Prometheus, over series that somebody else has looked up. Pure.

`parse.parse` a query, ask `tree.selectors` which series it needs, and give them to `evaluate.evaluate_instant` or
`evaluate.evaluate_range`. What the subset lacks is refused by name (`refusals.PromqlRefused`). Importing these loads
neither lark nor RE2.
"""

"""What a schema says, and where the ring keeps it.

`document` is what people write, `event_schema` what it means for events and filters, `axes` where values lie in a tree
and `values` what they are. `record` is what the ring keeps, `book` which schemas this node knows, and `infer` proposes
a schema from samples.
"""

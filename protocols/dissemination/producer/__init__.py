"""What a stream's producer does, and how another node becomes it.

Items: a publisher waits in `publishing`; `release_queue` has items go out in their order, and `keeping` only when they
are on the disk, in a `log`. Streams: `produced` are those that this node produces, over restarts. Another producer: a
`role` is what this node is to one stream, from a member that stands by to a producer that is it no more, `fencing` says
when each may act, and `succession` carries out the `effects`; a producer chooses `standbys`. `part` is what these two
have in common; `changes` puts them together for the plugin, and ends streams.
"""

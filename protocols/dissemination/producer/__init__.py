"""What a stream's producer does, and how another node becomes it.

Items: a publisher waits in `publishing`; `release_queue` has items go out in their order, and `keeping` only when they
are on the disk, in a `log`. Streams: `produced` are those that this node produces, over restarts. Another producer: the
old one drives a planned hand-over (`succession`) and chooses `standbys`, `next_producer` is the other side, `take_over`
is what a standby does when the producer is gone, `fencing` when each may, and `stepping_down` what a producer does that
is not the only one. `part` is what these have in common; `changes` puts them together for the plugin, and ends streams.
"""

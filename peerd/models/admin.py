"""What the admin API says, typed: the daemon answers with these models, and `peerd.client` reads them.

Ids are 32 hexadecimal digits, durations seconds, sizes bytes. Fields are only ever added; the client ignores those that
it does not know, so a newer daemon and an older client (and the reverse) understand each other.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, FailFast, Field, TypeAdapter

API_PREFIX: Final = "/v1"
PROBLEM_TYPE: Final = "application/problem+json"
JSON_TYPE: Final = "application/json"
STREAM_TYPE: Final = "application/x-ndjson"
ROUTE_KEY_LENGTH_MAX: Final = 1024
"""Longest key of ``/v1/route``, in characters."""
LATER: Final = ConfigDict(defer_build=True)
"""For what builds its validator when it is first used: a command uses about three of these fifty models."""


class AdminModel(BaseModel):
    """Base of all models of the admin API, and of request bodies: FastAPI needs a body's type to be complete."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class AdminAnswer(AdminModel):
    """Base of answers."""

    model_config = LATER


class MissingPeer(AdminAnswer):
    """A member of the ring that went without goodbye: it is expected until it is back, left, denied or forgotten."""

    id: str
    address: str
    lost_s: float = Field(description="Seconds since this daemon gave it up.")


class ForgetRequest(AdminModel):
    """What ``POST /v1/members/forgotten`` takes: one node, or all that are missing."""

    node: str | None = Field(
        default=None, min_length=1, max_length=300, description="Id, at least 8 digits of one, or host:port."
    )
    all_missing: bool = False


class LinkCuts(AdminModel):
    """What ``PUT /v1/links/cut`` takes and answers: the nodes with which there is to be no link, by their whole ids."""

    nodes: Annotated[list[Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]], FailFast()] = Field(max_length=256)


class ForgottenNode(AdminAnswer):
    """A node that was forgotten; ``lost_s``: seconds since this daemon gave it up."""

    id: str
    address: str | None = None
    lost_s: float | None = None


class Forgotten(AdminAnswer):
    """Nodes that the ring does not expect any more. The address is missing for a node that this one did not know."""

    nodes: list[ForgottenNode]


class PluginStatus(AdminAnswer):
    """One protocol of the daemon."""

    name: str
    version: int


class HistoryUse(AdminAnswer):
    """Something that the daemon remembers of the past, and the memory that it takes: now, and at most."""

    owner: str = Field(description="The plugin, or daemon.")
    name: str
    entries: int
    bytes: int = Field(description="By measured sizes of entries.")
    bytes_max: int


class Status(AdminAnswer):
    """The daemon in one object."""

    id: str
    address: str = Field(description="host:port under which peers reach this node.")
    cluster: str
    profile: str
    version: str
    boot_epoch: int
    pid: int
    uptime_s: float
    is_ready: bool = Field(description="Joined, with a complete leaf set, and not stopping.")
    ring_size: float = Field(
        description="Estimated number of nodes; exact when the leaf set covers the ring. 0: this node has left it."
    )
    is_ring_size_exact: bool
    leaf_set_members: int
    state: str = Field(
        default="",
        description="joining; ready; degraded: in the ring, but may not answer as root; draining; drained; stopping.",
    )
    lease_held: bool = Field(default=True, description="Whether it may answer as root.")
    partition_suspected: bool = Field(default=False, description="Many peers that were lost at once are missing.")
    outside: str | None = Field(default=None, description="Why the node is in no ring of its cluster, if so.")
    expected: float = Field(
        default=0.0, description="Nodes that the ring should have; exact when the leaf set covers it, else estimated."
    )
    missing: int = Field(default=0, description="Members round this node that went without goodbye.")
    missing_members: list[MissingPeer] = Field(default=[], description="At most 64 of them, in id order.")
    is_minority: bool = Field(default=False, description="More members are missing than there are.")
    absences: int = Field(default=0, description="Times the node found that it had not been running.")
    probe_period_s: float | None = Field(default=None, description="Between two probes of a routing-table entry.")
    draining: list[str] = Field(default=[], description="Plugins that have yet to hand over, the next one first.")
    links: int = Field(description="Control links that are up.")
    data_addresses: list[str] = Field(default=[], description="Where data clients connect: socket, host:port.")
    plugins: list[PluginStatus]
    histories: list[HistoryUse] = Field(default=[], description="What is remembered of the past, and its bounds.")
    certificate_expires_at: float | None = Field(default=None, description="Unix time; null without TLS.")
    certificate_state: Literal["ok", "warning", "error", "expired"] | None = Field(
        default=None, description="warning: renewal is due and failed; error: four fifths of the life are over."
    )


class Peer(AdminAnswer):
    """Another node, as this one knows it."""

    id: str
    address: str
    place: Literal["smaller", "larger", "both", "known"] = Field(
        description="Side of the leaf set (both in a small ring), or known: in the routing table only."
    )
    rtt_s: float | None = Field(default=None, description="Smoothed round trip, where one was measured.")
    is_linked: bool = Field(default=False, description="Whether a control link is up.")
    predicted_rtt_s: float | None = Field(default=None, description="What the network coordinates predict.")
    prediction_error: float | None = Field(default=None, description="Relative error that the coordinates state.")
    suspected: str | None = Field(default=None, description="The evidence, while the peer is under suspicion.")
    misbehaviour: float = Field(default=0.0, description="Decaying score; banned at 100.")


class DepartedPeer(AdminAnswer):
    """A node that this one has removed, and may look for."""

    id: str
    address: str
    ago_s: float = Field(description="Seconds since the removal.")
    has_left: bool = Field(description="It said goodbye; otherwise it was silent.")
    vouched_by: str | None = Field(default=None, description="Who still sees it: messages for it go that way.")
    misbehaviour: float = 0.0


class Peers(AdminAnswer):
    """Every peer that this node knows, in id order, and those that it has removed, the latest first."""

    peers: list[Peer]
    departed: list[DepartedPeer] = []
    missing: list[MissingPeer] = Field(default=[], description="Expected all the same, in id order.")


class VerdictView(AdminAnswer):
    """One conclusion of a node about a peer, or what it was told about the peer."""

    at: float = Field(description="Seconds since the Unix epoch.")
    verdict: str = Field(description="suspected, cleared, removed, withheld, left, back or accused.")
    evidence: str
    silence_s: float | None = Field(description="How long the peer had been silent; null: never heard.")
    lag_s: float = Field(description="How late the observer's own timers were: a starved accuser, when large.")
    accuser: str | None = Field(description="Who told the observer; null: its own finding.")
    observer: str = Field(default="", description="Whose verdict it is; times are its clock's.")


class HistoryView(AdminAnswer):
    """What this node, and the nodes that were asked, concluded about one peer, oldest first."""

    id: str
    address: str | None
    state: Literal["member", "entry", "departed", "unknown"]
    verdicts: list[VerdictView]
    asked: list[str] = Field(default=[], description="Other nodes that were asked, and answered.")
    silent: list[str] = Field(default=[], description="Other nodes that were asked, and did not answer.")


class Ring(AdminAnswer):
    """The ring as seen from here: the leaf set nearest first on each side, and what else is known."""

    id: str
    address: str
    ring_size: float
    is_complete: bool = Field(description="Both sides of the leaf set are full and confirmed, or the ring is smaller.")
    covers_ring: bool = Field(description="Every node of the ring is in the leaf set.")
    smaller: list[Peer]
    larger: list[Peer]
    known: list[Peer]
    missing: list[MissingPeer] = Field(default=[], description="Expected round this node, and gone without goodbye.")


class Hop(AdminAnswer):
    """One hop of a traced lookup; ``rtt_s`` is the round trip from the hop before it."""

    id: str
    address: str
    rtt_s: float | None


class RouteView(AdminAnswer):
    """Who the root of a key is, and the way there. ``root`` is null when nobody answered in time."""

    key: str
    is_hashed: bool = Field(description="Whether the key is the hash of the text given, rather than the id itself.")
    root: Peer | None
    hops: list[Hop]
    duration_s: float


class RingNode(AdminAnswer):
    """One node of the ring, as it describes itself to a node that walks over the ring."""

    id: str
    address: str
    is_ready: bool
    may_serve: bool
    is_leaving: bool
    leaf_set_members: int
    successor: str | None
    ring_size: float
    partition_suspected: bool


class WalkProgressView(AdminAnswer):
    """How far a walk over the ring has come, in nodes; ``found``: known so far, whether asked or not."""

    type: Literal["progress"] = "progress"
    answered: int
    silent: int
    found: int
    expected: float


class RingCheck(AdminAnswer):
    """The ring as its nodes describe it, and whether the descriptions agree."""

    type: Literal["answer"] = "answer"
    nodes: list[RingNode]
    silent: list[str] = Field(description="Addresses of nodes that somebody lists and that did not answer.")
    cycles: list[int] = Field(description="Nodes of each cycle of successors; one ring has one.")
    outcome: Literal["consistent", "inconsistent", "partial"]
    problems: list[str] = Field(description="What contradicts a consistent ring; at most 200.")
    problems_total: int
    unanswered: list[str] = Field(description="Who did not answer, and who lists them; at most 200.")
    notes: list[str]
    duration_s: float
    missing: list[MissingPeer] = Field(default=[], description="Expected and gone without goodbye; at most 200.")
    missing_total: int = 0


RING_LINE: Final[TypeAdapter[WalkProgressView | RingCheck]] = TypeAdapter(
    Annotated[WalkProgressView | RingCheck, Field(discriminator="type")], config=LATER
)
"""One line of the stream that answers ``POST /v1/ring/check``."""


class ReachProgressView(AdminAnswer):
    """How far a reachability test has come, in nodes."""

    type: Literal["progress"] = "progress"
    measured: int
    total: int


class ReachPair(AdminAnswer):
    """One node pinged another."""

    source: str
    target: str
    is_reached: bool
    rtt_s: float | None
    expected_s: float | None = Field(default=None, description="Of outliers: what the coordinates predict.")


class ReachNode(AdminAnswer):
    """A node of the test; ``reason``: why it could not test, if so."""

    id: str
    address: str
    reason: str | None = None


class ReachAnswer(AdminAnswer):
    """Which nodes reach which. ``partial``: no pair failed, but some nodes did not answer at all."""

    type: Literal["answer"] = "answer"
    outcome: Literal["all", "broken", "partial"]
    nodes: list[ReachNode]
    targets_each: int
    pairs_tested: int
    pairs_failed: int
    rtt_median_s: float | None
    rtt_max_s: float | None
    failed: list[ReachPair] = Field(description="Pairs that failed though the target answers others; at most 500.")
    dead: list[ReachNode] = Field(description="Nodes that answered nobody.")
    outliers: list[ReachPair] = Field(description="Round trips far above what is expected, worst first; at most 20.")
    pairs: list[ReachPair] = Field(description="Every pair, of at most 32 nodes.")
    duration_s: float


REACH_LINE: Final[TypeAdapter[ReachProgressView | ReachAnswer]] = TypeAdapter(
    Annotated[ReachProgressView | ReachAnswer, Field(discriminator="type")], config=LATER
)
"""One line of the stream that answers ``POST /v1/reach``."""


class Rtt(AdminAnswer):
    """The round trip between two nodes: as predicted by network coordinates, and as measured by the first one."""

    source: ReachNode
    target: ReachNode
    predicted_s: float | None
    prediction_error: float | None = Field(description="Relative error of the less certain of the two coordinates.")
    measured_s: float | None = Field(description="The shortest of a few pings.")
    is_reached: bool
    reason: str | None = Field(default=None, description="Why nothing was measured.")


class Rtts(AdminAnswer):
    """The round trips from this node to every node that it knows, in id order."""

    rtts: list[Rtt]


class DrainProgress(AdminAnswer):
    """A drain under way."""

    type: Literal["progress"] = "progress"
    waiting_for: list[str] = Field(description="Plugins that have yet to hand over, the next one first.")
    elapsed_s: float


class DrainAnswer(AdminAnswer):
    """The node is out of the ring. ``unfinished``: plugins that had not handed over in time."""

    type: Literal["answer"] = "answer"
    unfinished: list[str]
    duration_s: float


DRAIN_LINE: Final[TypeAdapter[DrainProgress | DrainAnswer]] = TypeAdapter(
    Annotated[DrainProgress | DrainAnswer, Field(discriminator="type")], config=LATER
)
"""One line of the stream that answers ``POST /v1/drain``."""


class Setting(AdminAnswer):
    """One effective setting, in file notation, and where it came from."""

    key: str
    value: Any
    origin: str


class EffectiveSettings(AdminAnswer):
    """The whole effective configuration."""

    settings: list[Setting]


class SettingChange(AdminAnswer):
    """A setting whose value differs between the configuration in force and the one that was read again."""

    key: str
    old: str = Field(description="In file notation; a secret is hidden.")
    new: str = Field(description="In file notation; a secret is hidden.")
    origin: str = Field(description="Where the new value stands.")


class ReloadAnswer(AdminAnswer):
    """What reading the configuration again did. A configuration that is wrong is an error, and changes nothing."""

    applied: list[SettingChange]
    needs_restart: list[SettingChange] = Field(description="Still at their old values, until the daemon is restarted.")
    conflict: str = Field(
        default="",
        description="Why nothing was applied: the keys that could be do not fit the old values of those that need a "
        "restart.",
    )


class Check(AdminAnswer):
    """One health check."""

    name: str
    ok: bool
    detail: str


class Health(AdminAnswer):
    """Answer of the health probes; ``checks`` is filled on ``/healthz?verbose=1`` and ``/readyz``."""

    status: Literal["ok", "failing"]
    checks: list[Check] = []


# Identity


class RootCertificate(AdminAnswer):
    """A root that the node trusts."""

    fingerprint: str = Field(description="First 16 bytes of SHA-256 of the public key, as in a join token.")
    expires_at: float
    trusted_until: float = Field(description="Unix time: its end, or that of the overlap after a rotation.")


class Certificate(AdminAnswer):
    """This node's certificate, and what it knows of the cluster's CA. Times are Unix seconds."""

    id: str
    cluster: str
    serial: str
    issued_at: float
    expires_at: float
    issued_by: str = Field(description="Fingerprint of the root that signed it.")
    state: Literal["ok", "warning", "error", "expired"]
    renews_at: float
    last_failure: str = Field(description="Why the last attempt to renew failed; empty after a success.")
    is_issuer: bool
    issuers: list[str] = Field(description="Addresses of the nodes that issue, as far as this one knows.")
    roots: list[RootCertificate]


class CertificateRequest(AdminModel):
    """What ``POST /v1/certificate`` takes: the answer of an offline CA, in PEM."""

    pem: str = Field(max_length=32 * 1024)


class TokenRequest(AdminModel):
    """What ``POST /v1/tokens`` takes."""

    life_s: float = Field(gt=0)
    uses: int = Field(default=1, ge=1)


class Token(AdminAnswer):
    """A join token without its secret. Times are Unix seconds."""

    id: str
    state: Literal["usable", "used_up", "expired", "revoked"]
    created_at: float
    expires_at: float
    uses: int
    uses_max: int


class NewToken(AdminAnswer):
    """A token that was just made. Its text is shown only in this answer."""

    token: Token
    text: str


class Tokens(AdminAnswer):
    """The issuer's book, oldest first."""

    tokens: list[Token]


class AccessRequest(AdminModel):
    """An access token to make: for whom, for what, and for how long."""

    name: str
    scopes: Annotated[list[str], FailFast()] = Field(
        description='"<protocol>:read", "<protocol>:write", or "*" for everything.'
    )
    life_s: float


class AccessEntry(AdminAnswer):
    """An access token as the daemon knows it."""

    id: str
    name: str
    scopes: list[str]
    created_at: float = Field(description="Unix time, like the end.")
    expires_at: float
    is_expired: bool


class NewAccess(AdminAnswer):
    """An access token that was just made. Its text is shown only in this answer."""

    token: AccessEntry
    text: str


class AccessEntries(AdminAnswer):
    """The access tokens of this daemon, oldest first."""

    tokens: list[AccessEntry]


class DenialRequest(AdminModel):
    """What ``POST /v1/denials`` takes: a node id or a certificate's serial number."""

    subject: str = Field(max_length=64)
    reason: str = Field(default="", max_length=256)
    is_withdrawn: bool = False


class DeniedSubject(AdminAnswer):
    """An entry of the deny list."""

    subject: str
    reason: str
    denied_at: float


class NewDenial(DeniedSubject):
    """A denial that was made just now. ``is_saved``: false while the disk of the issuer refuses it."""

    is_saved: bool = True


class Denials(AdminAnswer):
    """The deny list as this node holds it, by subject."""

    denials: list[DeniedSubject]


class RotationRequest(AdminModel):
    """What ``POST /v1/ca/rotation`` takes."""

    overlap_s: float = Field(gt=0)


class NoticeBody(AdminModel):
    """What ``POST /v1/notices`` takes: a notice that an offline CA signed."""

    notice: str = Field(max_length=32 * 1024)


class NoticeAnswer(AdminAnswer):
    """Whether the notice was new to the daemon. ``is_saved``: false while its disk refuses what it has learned."""

    is_new: bool
    is_saved: bool = True


class Problem(AdminAnswer):
    """An error (RFC 9457). ``title`` names the kind and is stable, ``detail`` is for the person who asked."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str = ""

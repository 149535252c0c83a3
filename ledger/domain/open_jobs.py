"""Jobs that have not ended, by id. Most of them wait, and nothing has happened to them yet: of such
a job only what it does not share with others is kept, and it is made anew for whoever asks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, MutableMapping
from operator import attrgetter
from typing import Any, final, get_type_hints

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from ledger.domain.events import JobRequested, Labels
from ledger.domain.evolve import begin
from ledger.domain.ids import JobId, Micros
from ledger.domain.job import Job

RECENT_MAX = 1_000
"""So many that came last are kept as they are: most jobs do not wait for long."""
TERMS_MAX = 1_000
"""That are known at once. Where there are more, few jobs have them in common."""


@final
class Packed(Struct, frozen=True, gc=False):
    """A plain job of which nothing is known but its request."""

    terms: JobRequested
    """What it was asked for under, as others were: of equal terms there is one value, in which
    whatever is a job's own is blank."""
    payload: bytes
    created_at: Micros
    ready_at: Micros
    order: int
    rest: bytes
    """JSON: what else is its own, which for most is nothing."""


class Alike(Struct, frozen=True, gc=False):
    """Packed jobs of equal terms, side by side, as a snapshot holds them."""

    terms: JobRequested
    ids: tuple[JobId, ...]
    payloads: tuple[Raw, ...]
    created_at: tuple[Micros, ...]
    ready_at: tuple[Micros, ...]
    orders: tuple[int, ...]
    rests: tuple[Raw, ...]


class OpenJobs(MutableMapping[JobId, Job]):
    """To read one changes nothing: it stays packed until it is put as it is now."""

    __slots__ = ("_at", "_held", "_recent", "_terms", "peek")

    def __init__(self) -> None:
        self._held: dict[JobId, Job | Packed] = {}
        self._recent: deque[JobId] = deque()
        self._at = Micros(0)
        self._terms: dict[tuple[object, ...], JobRequested] = {}
        self.peek = self._held.get
        """As it is held: for who asks what both forms tell."""

    def add(self, job: Job) -> None:
        """One that was not there."""
        job_id = job.request.job_id
        self._held[job_id] = job
        self._recent.append(job_id)
        if len(self._recent) > RECENT_MAX:
            self._pack(self._recent.popleft())

    def put_back(self, alike: Alike) -> None:
        """Of none of them anything is there."""
        held, terms = self._held, self._terms_of(alike.terms)
        at = self._at
        rows = zip(
            *(alike.ids, alike.payloads, alike.created_at, alike.ready_at, alike.orders),
            alike.rests,
            strict=True,
        )
        for job_id, payload, created_at, ready_at, order, rest in rows:
            if created_at != at:
                at = created_at
            own = bytes(rest)
            held[job_id] = Packed(
                terms,
                bytes(payload),
                at,
                at if ready_at == at else ready_at,
                order,
                b"" if own == _NOTHING else own,
            )
        self._at = at

    def get(self, job_id: JobId, default: None = None) -> Job | None:  # type: ignore[override]
        held = self._held.get(job_id)
        return job_of(job_id, held) if type(held) is Packed else held

    def terms(self, job_id: JobId) -> JobRequested:
        """Its request, as far as it is like others'."""
        held = self._held[job_id]
        return held.terms if type(held) is Packed else held.request

    def begun(self) -> Iterator[Job]:
        """Those to which anything may have happened: all that hold a lease are among them."""
        return (held for held in self._held.values() if type(held) is not Packed)

    def unpack(self, job_id: JobId) -> Job:
        """One that is about to be put in another state."""
        held = self._held[job_id]
        if type(held) is not Packed:
            return held
        job = self._held[job_id] = job_of(job_id, held)
        return job

    def __getitem__(self, job_id: JobId) -> Job:
        return job_of(job_id, self._held[job_id])

    def __setitem__(self, job_id: JobId, job: Job) -> None:
        self._held[job_id] = job

    def __delitem__(self, job_id: JobId) -> None:
        del self._held[job_id]

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._held

    def __iter__(self) -> Iterator[JobId]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def copy(self) -> dict[JobId, Job | Packed]:
        """As they are held, see `job_of`."""
        return self._held.copy()

    def _pack(self, job_id: JobId) -> None:
        job = self._held.get(job_id)
        if job is None or type(job) is Packed or job.version > 1 or job.request.flow is not None:
            return
        asked = job.request
        # Equal instants are one integer: of a job, and of those that came in one turn.
        at = self._at = self._at if job.created_at == self._at else job.created_at
        ready_at = at if asked.ready_at == at else asked.ready_at
        fields = _rest_of(asked)
        try:
            rest = b"" if fields == _NO_REST else _encode(_Rest(*fields))
        except (ValueError, OverflowError):
            return  # No JSON holds what it says, so that no log does.
        self._held[job_id] = Packed(
            self._terms_of(asked), bytes(asked.payload), at, ready_at, job.order, rest
        )

    def _terms_of(self, asked: JobRequested) -> JobRequested:
        key = _key_of(asked)
        terms = self._terms.get(key)
        if terms is None:
            if len(self._terms) == TERMS_MAX:
                self._terms.clear()
            terms = self._terms[key] = replace(asked, **_BLANK)
        return terms


def job_of(job_id: JobId, held: Job | Packed) -> Job:
    if type(held) is not Packed:
        return held
    asked = replace(
        held.terms,
        job_id=job_id,
        payload=Raw(held.payload),
        ready_at=held.ready_at,
        order=held.order,
        **_own_of(held),
    )
    return begin(asked, held.created_at)


def alike(rows: Iterable[tuple[JobId, Packed]]) -> list[Alike]:
    """In the order in which each first row of equal terms comes."""
    groups: dict[int, tuple[JobRequested, list[tuple[JobId, Packed]]]] = {}
    for row in rows:
        terms = row[1].terms
        groups.setdefault(id(terms), (terms, []))[1].append(row)
    return [
        Alike(
            terms,
            tuple(job_id for job_id, _ in its),
            tuple(Raw(held.payload) for _, held in its),
            tuple(held.created_at for _, held in its),
            tuple(held.ready_at for _, held in its),
            tuple(held.order for _, held in its),
            tuple(Raw(held.rest or _NOTHING) for _, held in its),
        )
        for terms, its in groups.values()
    ]


def labels_and_dedupe(held: Packed) -> tuple[Labels, bytes | None]:
    """What others look at of that which is its own."""
    own = _own_of(held)
    return own.get("labels", {}), own.get("dedupe_digest")


def _own_of(held: Packed) -> dict[str, Any]:
    """Those of `_REST` that it has."""
    own: dict[str, Any] = {}
    if held.rest:
        for letter, said in _decode(held.rest).items():
            name, decode = _BY_LETTER[letter]
            own[name] = decode(said)
    return own


_NOTHING = b"null"
_REST = (
    "labels",
    "scope",
    "idempotency_key",
    "key_digest",
    "content_digest",
    "key_until",
    "payload_ref",
    "retried_from",
    "dedupe_digest",
    "schedule",
    "extract",
    "forward_headers",
    "sealed_for",
)
_FIELDS = {field.name: field for field in msgspec.structs.fields(JobRequested)}
_HINTS = get_type_hints(JobRequested)
_OF_REST: list[Any] = [
    (name, _HINTS[name], {} if name == "labels" else _FIELDS[name].default) for name in _REST
]
_BLANK: dict[str, Any] = {
    "job_id": JobId(""),
    "payload": Raw(b"{}"),
    "ready_at": Micros(0),
    "order": 0,
} | {name: default for name, _, default in _OF_REST}
_LETTERS = dict(zip(_REST, "abcdefghijklmnopqrstuvwxyz", strict=False))
_Rest = msgspec.defstruct("Rest", _OF_REST, omit_defaults=True, gc=False, rename=_LETTERS)
_NO_REST = tuple(default for _, _, default in _OF_REST)
_rest_of = attrgetter(*_REST)
_key_of = attrgetter(*(name for name in _FIELDS if name not in _BLANK))
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Raw]).decode
_BY_LETTER = {
    _LETTERS[name]: (name, msgspec.json.Decoder(hint).decode) for name, hint, _ in _OF_REST
}
"""By what a field is called in JSON: each by itself, as few are there."""

"""One attempt at a call: from the job and its model to an object, or to a failure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from ledger.client import Context, GiveBack, JobCancelled, JobFailure, StoredOutput, carrying
from ledger.client.carrying import Carrier
from ledger.client.held import Held
from ledger.domain.commands import Model
from ledger.domain.events import Ref
from ledger.domain.object_keys import is_output_of
from ledger.objects import FolderStore, StoreUnavailable
from ledger.sealing.api_keys import context_of
from ledger.sealing.forward_headers import seal_headers
from ledger.sealing.keyring import Keyring, generate_key, keyring_from
from ledger.sealing.sealed import seal
from processors.model_calls.addresses import AllowList, Guard
from processors.model_calls.attempt import ModelCalls
from processors.model_calls.calling import Bounds, ModelCaller
from processors.model_calls.registry import Registry
from projections.answers import ModelState, Rows
from projections.reads import ReadsUnavailable
from tests.support.scripted_model import ScriptedModel, always, answer, scripted_model
from tests.unit.client.scripted_owner import World

pytestmark = pytest.mark.rule("S4.3")

CANARY = "canary-7d41"
KEYRING = keyring_from(f"k1:{generate_key()}")
OTHER = keyring_from(f"k2:{generate_key()}")
COMMAND = "c-1"


def context(**fields: Any) -> Context:
    """Of a job of the type `echo`."""
    [held] = World().assign(1)
    asked: Held = Held(
        held.session, held.job_id, held.fence, held.item, replace(held.job, **fields)
    )
    return Context(asked, lambda held, said: None)


def sealed_model(url: str, **fields: Any) -> Model:
    sealed = seal(KEYRING, CANARY.encode(), context=context_of("echo"))
    return Model(base_url=url, **{"api_key": sealed, **fields})


@dataclass
class Bench:
    store: FolderStore
    keyring: Keyring | None = KEYRING
    model: Model | None = None
    asked: list[str] = field(default_factory=list)

    def calls(self) -> ModelCalls:
        async def find(name: str) -> Model | None:
            self.asked.append(name)
            return self.model

        caller = ModelCaller(Guard(AllowList.of(["loopback"])), bounds=Bounds(bytes_max=100_000))
        return ModelCalls(find, caller, Carrier(self.store), self.keyring)

    async def failure(self, ctx: Context) -> JobFailure:
        with pytest.raises(JobFailure) as caught:
            await self.calls().call(ctx)
        assert CANARY not in f"{caught.value!r} {caught.value.message} {caught.value.details}"
        return caught.value


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(FolderStore(tmp_path / "objects"))


# --- What comes of it -----------------------------------------------------------------------------
async def test_what_the_model_answers_is_stored_under_a_key_of_this_attempt(bench: Bench) -> None:
    ctx = context(
        payload=Raw(b'{"a": 1.0}'),
        forward_headers=str(seal_headers(KEYRING, {"X-User-Info": "u"}, command_id=COMMAND)),
        sealed_for=COMMAND,
    )
    wire = answer(200, b"[1]", content_type="application/problem+json; charset=utf-8")
    async with scripted_model(always(wire)) as model:
        bench.model = sealed_model(model.url, api_key_header="X-Key")
        calls = bench.calls()
        output = await calls.call(ctx)
    assert isinstance(output, StoredOutput)
    assert is_output_of(output.ref.key, ctx.job_id, ctx.labels, ctx.fence)
    assert output.ref.key.endswith("-output.json")
    assert await bench.store.get(output.ref) == b"[1]"
    [received] = model.received
    assert received.body == b'{"a": 1.0}'
    assert received.headers["x-key"] == CANARY
    assert received.headers["x-user-info"] == "u"
    assert received.headers["idempotency-key"] == f"{ctx.job_id}:{ctx.fence}"
    assert (calls.answered, calls.under_way, calls.failed.total()) == (1, 0, 0)


async def test_an_answer_that_is_no_json_and_an_empty_one_are_stored_too(bench: Bench) -> None:
    for body in (b"", b"\x00"):
        async with scripted_model(always(answer(200, body))) as model:
            bench.model = Model(base_url=model.url)
            output = await bench.calls().call(context(labels={"user": str(len(body))}))
        assert output.ref.key.endswith("-output.bin")
        assert await bench.store.get(output.ref) == body


async def test_what_the_call_failed_with_is_what_the_attempt_fails_with(bench: Bench) -> None:
    async with scripted_model(always(answer(429, retry_after="7"))) as model:
        bench.model = sealed_model(model.url)
        failure = await bench.failure(context())
    assert (failure.code, failure.retryable, failure.retry_after, failure.details) == (
        "MODEL_RATE_LIMIT",
        True,
        7.0,
        {"status": 429},
    )


async def test_a_payload_in_the_store_is_fetched(bench: Bench) -> None:
    data = b'{"large": true}'
    ref = await bench.store.put("p", data, sha256=_sha256(data), size=len(data))
    async with scripted_model(always(answer())) as model:
        bench.model = sealed_model(model.url)
        await bench.calls().call(context(payload_ref=ref))
        assert model.received[0].body == data
        lost = await bench.failure(context(payload_ref=Ref("gone", 1, "ab" * 32)))
    assert (lost.code, lost.retryable) == ("OBJECT_LOST", False)
    assert len(model.received) == 1


def _sha256(data: bytes) -> str:
    from hashlib import sha256

    return sha256(data).hexdigest()


# --- What cannot be called ------------------------------------------------------------------------
async def test_a_model_that_is_gone_is_not_tried_again(bench: Bench) -> None:
    failure = await bench.failure(context())
    assert (failure.code, failure.retryable) == ("MODEL_NOT_FOUND", False)
    assert bench.asked == ["echo"]


@pytest.mark.parametrize(
    ("keyring", "fields", "job"),
    [
        (None, {}, {}),
        (OTHER, {}, {}),
        (KEYRING, {"api_key": str(seal(KEYRING, b"k", context=context_of("other")))}, {}),
        (KEYRING, {"api_key": f"v1.{CANARY}"}, {}),
        (
            OTHER,
            {"api_key": None},
            {"forward_headers": str(seal_headers(KEYRING, {"A": CANARY}, command_id=COMMAND))},
        ),
        (
            KEYRING,
            {},
            {"forward_headers": str(seal_headers(KEYRING, {"A": CANARY}, command_id="c-2"))},
        ),
        (None, {"api_key": None}, {"forward_headers": CANARY}),
    ],
)
async def test_secrets_that_do_not_open_fail_for_good_before_anything_is_sent(
    bench: Bench, keyring: Keyring | None, fields: dict[str, Any], job: dict[str, Any]
) -> None:
    async with scripted_model(always(answer())) as model:
        bench.keyring, bench.model = keyring, sealed_model(model.url, **fields)
        failure = await bench.failure(context(**job, sealed_for=COMMAND))
    assert (failure.code, failure.retryable) == ("INVALID_CREDENTIAL", False)
    assert model.received == []


# --- Being stopped --------------------------------------------------------------------------------
async def _stopped(bench: Bench, stop: Callable[[asyncio.Task[Any], Context], object]) -> None:
    came = asyncio.Event()

    async def silent(received: object, writer: object) -> None:
        came.set()

    async with scripted_model(silent) as model:
        bench.model = sealed_model(model.url)
        ctx = context()
        calling = asyncio.create_task(bench.calls().call(ctx))
        await came.wait()
        stop(calling, ctx)
        try:
            await calling
        finally:
            await _left(model)


async def _left(model: ScriptedModel) -> None:
    async with asyncio.timeout(10):
        await model.left()


async def test_a_cancelled_job_hangs_up(bench: Bench) -> None:
    with pytest.raises(JobCancelled):
        await _stopped(bench, lambda calling, ctx: ctx.cancelled.set("no more", 30.0))


async def test_a_lost_lease_hangs_up(bench: Bench) -> None:
    with pytest.raises(asyncio.CancelledError):
        await _stopped(bench, lambda calling, ctx: calling.cancel())


# --- A store that is away -------------------------------------------------------------------------
class Flaky(FolderStore):
    """Away for so many calls."""

    away = 0

    async def put(self, *args: Any, **kwargs: Any) -> Ref:
        self.away -= 1
        if self.away >= 0:
            raise StoreUnavailable("no answer")
        return await super().put(*args, **kwargs)


@pytest.mark.parametrize("away", [1, 2, 99])
async def test_an_answer_outlives_a_store_that_is_away_for_a_moment(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, away: int
) -> None:
    monkeypatch.setattr(carrying, "PAUSE_SECONDS", 0.0)
    bench.store = flaky = Flaky(tmp_path / "flaky")
    flaky.away = away
    async with scripted_model(always(answer(200, b"once"))) as model:
        bench.model = Model(base_url=model.url)
        if away == 99:
            failure = await bench.failure(context())
            assert (failure.code, failure.retryable) == ("OBJECT_UNAVAILABLE", True)
        else:
            output = await bench.calls().call(context())
            assert await flaky.get(output.ref) == b"once"
    assert len(model.received) == 1


# --- Which models there are -----------------------------------------------------------------------
class Views:
    """The read side as a registry uses it."""

    def __init__(self, *names: str, waiting: tuple[str, ...] = ()) -> None:
        self.states = {name: ModelState(name, Model(f"http://{name}"), 0, 5) for name in names}
        self.waiting = waiting
        self.is_away = False
        self.shows = 5

    async def models(self) -> Rows[ModelState]:
        self._require()
        return Rows(tuple(self.states.values()), {})

    async def open_types(self, queue: str) -> list[str]:
        self._require()
        return list(self.waiting)

    async def model(self, name: str) -> ModelState | None:
        self._require()
        return self.states.get(name)

    async def reached(self, partition: int, offset: int, seconds_max: float) -> bool:
        self._require()
        return offset <= self.shows

    def _require(self) -> None:
        if self.is_away:
            raise ReadsUnavailable("away")


def registry(views: Views, end: int = 6) -> Registry:
    async def events_end() -> int:
        return end

    return Registry(views, partition=0, events_end=events_end)


async def test_models_are_offered_and_deleted_ones_whose_jobs_wait() -> None:
    views = Views("a", "b", waiting=("b", "gone"))
    assert await registry(views).offered(10) == ["a", "b", "gone"]
    assert await registry(views).offered(2) == ["a", "b"]


async def test_a_model_is_found_as_it_was_last_put() -> None:
    views = Views("a")
    models = registry(views)
    assert (await models.find("a")) == Model("http://a")
    assert await models.find("gone") is None


async def test_what_a_view_that_is_behind_lacks_is_not_said_to_be_gone() -> None:
    models = registry(Views("a"), end=9)
    assert await models.find("a") == Model("http://a")
    with pytest.raises(GiveBack):
        await models.find("gone")


async def test_while_the_views_are_away_models_are_as_they_were() -> None:
    views = Views("a")
    models = registry(views)
    await models.offered(10)
    views.is_away = True
    assert await models.find("a") == Model("http://a")
    with pytest.raises(GiveBack):
        await models.find("b")

"""Claims that wait in an owner's memory, and what becomes of their grants."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from ledger.domain.commands import (
    CancelJob,
    Claim,
    GatewayBeat,
    Heartbeat,
    RequestJob,
    StartAttempt,
)
from ledger.domain.events import (
    CommandDuplicated,
    CommandsConsumed,
    JobCancelled,
    JobRequested,
    LeaseGranted,
    LeaseReleased,
)
from ledger.domain.ids import LEDGER_QUEUE, SECOND, CommandId, Micros, RuntimeId
from processors.owner import credit
from processors.owner.credit import LISTED_US
from processors.owner.turn import Turn
from tests.unit.owner.by_hand import QUEUE, Owner, events_of

GATEWAY = "0/gateway"
ANOTHER = "1/another"


@pytest.fixture
def owner() -> Owner:
    return Owner()


@pytest.fixture
def beaten(owner: Owner) -> Owner:
    """It has heard the gateway beat."""
    beats(owner)
    return owner


def claim(wait: float = 0.0, limit: int = 1) -> Claim:
    return Claim(RuntimeId("web"), (QUEUE,), ("sum",), limit, wait)


def claims(owner: Owner, name: str, *, wait: float = 0.0, by: str = GATEWAY) -> Turn:
    return owner.does(claim(wait), reply_to=by, command_id=name)


def beats(
    owner: Owner,
    *,
    waiting: Sequence[str] = (),
    handed_over: Sequence[str] = (),
    given_up: Sequence[str] = (),
    by: str = GATEWAY,
) -> Turn:
    lists = (tuple(map(CommandId, ids)) for ids in (waiting, handed_over, given_up))
    return owner.does(GatewayBeat(0, *lists), reply_to=by)


def pass_by(owner: Owner, us: int) -> Turn:
    """Time goes by, and all commands are read."""
    owner.at = Micros(owner.at + us)
    turn = owner.turn()
    turn.timers(owner.at, 1_000)
    turn.claims_over()
    turn.assign()
    turn.finish()
    return turn


def grants(turn: Turn) -> list[LeaseGranted]:
    return [event for event in events_of(turn) if isinstance(event, LeaseGranted)]


def items(turn: Turn) -> list[list[object]]:
    """Of each answer in the turn that is a claim's last."""
    answers = (one.reply.data for one in turn.effects.replies if one.reply.data is not None)
    return [msgspec.json.decode(answer)["items"] for answer in answers]


# --- Waiting -------------------------------------------------------------------------------------
def test_a_claim_that_finds_nothing_is_parked_and_filled_by_the_next_job(owner: Owner) -> None:
    turn = owner.does(claim(wait=5), reply_to="0/me")
    assert [w.reply.outcome for w in turn.effects.replies] == ["parked"]
    assert turn.entries == []
    turn = owner.does(RequestJob(type="sum"))
    assert [type(e) for e in events_of(turn)] == [JobRequested, LeaseGranted]
    [filled] = turn.effects.replies
    assert filled.reply_to == "0/me"
    assert filled.entry == turn.entries[-1].number
    assert filled.reply.data is not None
    assert len(msgspec.json.decode(filled.reply.data)["items"]) == 1


def test_a_claim_whose_wait_is_over_is_answered_empty(owner: Owner) -> None:
    owner.does(claim(wait=5), reply_to="0/me")
    owner.at = Micros(owner.at + 5 * SECOND)
    turn = owner.turn()
    turn.claims_over()
    [over] = turn.effects.replies
    assert over.reply.data is not None
    assert msgspec.json.decode(over.reply.data) == {"items": []}
    assert owner.offers.parked == {}


def test_a_claim_that_its_gateway_lists_no_more_is_granted_nothing(beaten: Owner) -> None:
    claims(beaten, "c", wait=30)
    pass_by(beaten, LISTED_US)
    assert grants(beaten.does(RequestJob(type="sum"))) == []
    [granted] = grants(beats(beaten, waiting=["c"]))
    assert granted.runtime_id == "web"


def test_a_claim_is_granted_as_long_as_its_gateway_lists_it(beaten: Owner) -> None:
    claims(beaten, "c", wait=30)
    for _ in range(4):
        pass_by(beaten, LISTED_US - 1)
        beats(beaten, waiting=["c"])
    pass_by(beaten, LISTED_US - 1)
    assert len(grants(beaten.does(RequestJob(type="sum")))) == 1


def test_a_beat_read_late_is_no_sign_of_life_now(beaten: Owner) -> None:
    claims(beaten, "c", wait=30)
    late = beaten.asked(GatewayBeat(0, (CommandId("c"),)), reply_to=GATEWAY)
    beaten.at = Micros(beaten.at + LISTED_US)
    turn = beaten.turn()
    turn.read_command(late)
    assert grants(beaten.does(RequestJob(type="sum"))) == []


def test_who_never_beats_is_granted_until_the_wait_ends(owner: Owner) -> None:
    claims(owner, "c", wait=30)
    pass_by(owner, 30 * SECOND - 1)
    assert len(grants(owner.does(RequestJob(type="sum")))) == 1


def test_a_claim_whose_caller_has_gone_is_granted_nothing(beaten: Owner) -> None:
    claims(beaten, "gone", wait=30)
    claims(beaten, "there", wait=30)
    beats(beaten, given_up=["gone"])
    turn = beaten.does(RequestJob(type="sum"))
    assert [one.reply.command_id for one in turn.effects.replies] == ["there"]


def test_a_gateway_gives_up_no_claim_that_was_repeated_at_another(owner: Owner) -> None:
    claims(owner, "c", wait=30)
    claims(owner, "c", wait=30, by=ANOTHER)
    beats(owner, given_up=["c"])
    [told] = owner.does(RequestJob(type="sum")).effects.replies
    assert told.reply_to == ANOTHER


def test_gateways_that_beat_are_remembered_within_a_bound(
    beaten: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credit, "GATEWAYS_MAX", 2)
    claims(beaten, "c", wait=30)
    for number in range(2):
        beats(beaten, by=f"0/{number}")
    pass_by(beaten, LISTED_US)
    assert len(grants(beaten.does(RequestJob(type="sum")))) == 1, "as of one who never beat"


# --- Handing over --------------------------------------------------------------------------------
def test_a_grant_that_nobody_confirms_is_released_and_spends_no_attempt(beaten: Owner) -> None:
    [job_id] = beaten.submit(lease_seconds=60)
    claims(beaten, "lost")
    beaten.does(claim(wait=30), reply_to=ANOTHER)
    assert events_of(pass_by(beaten, LISTED_US - 1)) == []
    released, granted = events_of(pass_by(beaten, 1))
    assert isinstance(released, LeaseReleased)
    assert (released.job_id, released.spent) == (job_id, False)
    assert isinstance(granted, LeaseGranted)
    assert (granted.job_id, granted.attempt, granted.fence) == (job_id, 1, 2)
    assert beaten.offers.next_unconfirmed() is None


@pytest.mark.parametrize("wait", [0.0, 30.0])
def test_a_grant_that_was_handed_over_stands(beaten: Owner, wait: float) -> None:
    claims(beaten, "c", wait=wait)
    beaten.submit()
    claims(beaten, "c", wait=wait)
    beats(beaten, handed_over=["c"])
    assert events_of(pass_by(beaten, 2 * LISTED_US)) == []


def test_a_grant_waits_for_a_caller_who_has_no_answer_yet(beaten: Owner) -> None:
    beaten.submit()
    claims(beaten, "c")
    for _ in range(3):
        assert events_of(pass_by(beaten, LISTED_US - 1)) == []
        beats(beaten, waiting=["c"])
    assert [type(e) for e in events_of(pass_by(beaten, LISTED_US))] == [LeaseReleased]


@pytest.mark.parametrize("word", [StartAttempt, Heartbeat])
def test_a_grant_of_which_its_runtime_has_said_a_word_stands(
    beaten: Owner, word: type[StartAttempt] | type[Heartbeat]
) -> None:
    beaten.submit()
    [granted] = grants(claims(beaten, "c"))
    beaten.does(word(granted.job_id, granted.fence))
    assert events_of(pass_by(beaten, LISTED_US)) == []


def test_a_grant_that_was_cancelled_meanwhile_is_cancelled_without_a_grace(beaten: Owner) -> None:
    [job_id] = beaten.submit()
    claims(beaten, "c")
    beaten.does(CancelJob(job_id, "stop"))
    turn = pass_by(beaten, LISTED_US)
    assert [type(e) for e in events_of(turn)] == [LeaseReleased, JobCancelled]


def test_a_grant_to_one_who_never_beats_lasts_as_long_as_its_lease(owner: Owner) -> None:
    owner.submit(lease_seconds=60)
    claims(owner, "c")
    assert events_of(pass_by(owner, 60 * SECOND - 1)) == []


def test_a_claim_that_is_repeated_has_as_long_again_to_be_handed_over(beaten: Owner) -> None:
    beaten.submit()
    first = claims(beaten, "ik.claim.one")
    pass_by(beaten, LISTED_US - 1)
    again = claims(beaten, "ik.claim.one", by=ANOTHER)
    assert items(again) == items(first)
    assert events_of(pass_by(beaten, LISTED_US - 1)) == []
    beats(beaten, handed_over=["ik.claim.one"], by=ANOTHER)
    assert events_of(pass_by(beaten, LISTED_US)) == []


def test_of_more_grants_than_can_be_watched_the_lease_decides(
    beaten: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credit, "CLAIMS_MAX", 1)
    beaten.submit(2)
    claims(beaten, "first")
    claims(beaten, "second")
    assert [type(e) for e in events_of(pass_by(beaten, LISTED_US))] == [LeaseReleased]


def test_a_beat_leaves_no_entry_and_no_answer_and_its_offset_counts(beaten: Owner) -> None:
    turn = beats(beaten, waiting=["nobody"], handed_over=["nobody"], given_up=["nobody"])
    assert (turn.entries, turn.effects.replies, turn.unrecorded) == ([], [], 1)
    assert beaten.partition.commands == 2


# --- Nothing -------------------------------------------------------------------------------------
KEYED = "ik.claim.one"


@pytest.mark.rule("S1.7")
@pytest.mark.parametrize("wait", [0.0, 5.0])
def test_a_keyed_claim_that_got_nothing_gets_nothing_again_from_any_owner(
    owner: Owner, wait: float
) -> None:
    first = (claims(owner, KEYED, wait=wait), pass_by(owner, 5 * SECOND))
    assert [one for turn in first for one in items(turn)] == [[]]
    recorded = [entry for turn in first for entry in turn.entries]
    assert [entry.events for entry in recorded] == [(CommandsConsumed(LEDGER_QUEUE, 1),)]
    heir = Owner()
    for entry in recorded:
        heir.partition.apply(entry)
    heir.at = owner.at
    heir.submit()
    again = claims(heir, KEYED, wait=wait, by=ANOTHER)
    assert items(again) == [[]]
    assert again.effects.replies[0].reply.replayed
    assert [type(event) for event in events_of(again)] == [CommandDuplicated]


def test_a_keyed_claim_of_other_content_is_refused_after_an_empty_one(owner: Owner) -> None:
    claims(owner, KEYED)
    turn = claims(owner, "ik.claim.two")
    assert [one.reply.code for one in turn.effects.replies] == ["IDEMPOTENCY_KEY_REUSED"]


def test_a_claim_without_a_key_that_got_nothing_leaves_no_entry(owner: Owner) -> None:
    assert claims(owner, "c").entries == []
    claims(owner, "d", wait=5)
    turn = pass_by(owner, 5 * SECOND)
    assert items(turn) == [[]]
    assert turn.entries == []

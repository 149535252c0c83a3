"""Where objects lie: every owner has a place of their own, and every object one of its own."""

from __future__ import annotations

from string import ascii_letters, digits

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from ledger.domain.ids import CommandId, Fence, JobId, Micros, QueueName, new_job_id
from ledger.domain.object_keys import (
    SEGMENT_CHARS_MAX,
    is_output_of,
    is_payload_of,
    job_prefix,
    output_key,
    owner_prefix,
    payload_key,
)
from ledger.objects.checked_keys import checked_key
from ledger.objects.errors import InvalidKey

pytestmark = pytest.mark.rule("S3.7")

QUEUE = QueueName("default")
JOB = JobId("default.0190f5e2-8c00-7abc-8def-0123456789ab")
COMMAND = CommandId("c-1")

# Few letters, and those that could break out, so that two draws are often nearly the same.
tricky = st.text("aA1-~./%2eä\0\U0001f600", min_size=1, max_size=6)
long = st.text("ab/", min_size=60, max_size=256)
texts = tricky | long | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=256)
maybe = st.none() | texts
jobs = st.builds(
    new_job_id,
    st.sampled_from([QUEUE, QueueName("a"), QueueName("q" * 63)]),
    st.just(Micros(0)),
    st.sampled_from([b"1", b"2"]),
)
by = texts.map(CommandId) | st.integers(0, 20).map(Fence)


def labelled(user: str | None, project: str | None, task: str | None) -> dict[str, str]:
    fields = {"user": user, "project": project, "task": task}
    return {name: value for name, value in fields.items() if value is not None}


labels = st.builds(labelled, maybe, maybe, maybe)
outputs = st.tuples(jobs, labels, by, texts)
payloads = st.tuples(st.sampled_from([QUEUE, QueueName("a")]), labels, texts.map(CommandId), texts)


def place_of_output(asked: tuple[JobId, dict[str, str], CommandId | Fence, str]) -> object:
    """What must differ for keys to differ."""
    job, labels, by, name = asked
    whose = (job, by) if isinstance(by, int) else by
    if "user" not in labels:
        return "jobs", job, whose, name
    return labels["user"], labels.get("project"), labels.get("task", job), whose, name


# --- As they look ---------------------------------------------------------------------------------
def test_outputs_lie_below_their_user_project_and_task() -> None:
    labels = {"user": "u1", "project": "42", "task": "cards", "colour": "red"}
    folder = "users/u1/projects/42/tasks/cards"
    assert output_key(JOB, labels, COMMAND) == f"{folder}/output/c-1-output.json"
    assert output_key(JOB, labels, Fence(7)) == f"{folder}/output/{JOB}~7-output.json"
    assert output_key(JOB, labels, Fence(7), "a.png") == f"{folder}/output/{JOB}~7-a.png"
    assert payload_key(QUEUE, labels, COMMAND) == f"{folder}/input/c-1-payload.json"
    assert job_prefix(JOB, labels) == f"{folder}/"


def test_without_labels_they_lie_below_their_job_or_command() -> None:
    assert output_key(JOB, {}, COMMAND) == f"queues/default/jobs/{JOB}/output/c-1-output.json"
    assert payload_key(QUEUE, {}, COMMAND) == "queues/default/commands/c-1/input/c-1-payload.json"
    assert output_key(JOB, {"project": "42"}, COMMAND).startswith("queues/")
    assert output_key(JOB, {"user": ""}, COMMAND).startswith("queues/")


def test_a_user_needs_neither_project_nor_task() -> None:
    assert output_key(JOB, {"user": "u"}, COMMAND).startswith(f"users/u/tasks/{JOB}/output/")
    assert payload_key(QUEUE, {"user": "u"}, COMMAND).startswith("users/u/tasks/c-1/input/")


def test_labels_that_look_like_paths_stay_names() -> None:
    labels = {"user": "../../etc", "project": ".", "task": "a/b%2fc d~"}
    assert job_prefix(JOB, labels) == "users/%2e.%2f..%2fetc/projects/%2e/tasks/a%2fb%252fc%20d%7e/"
    assert owner_prefix("Zoë@example.org") == "users/Zo%c3%ab@example.org/"


@pytest.mark.parametrize(("user", "project"), [("", None), ("", "p"), ("u", "")])
def test_nobody_owns_nothing(user: str, project: str | None) -> None:
    with pytest.raises(ValueError, match="owns nothing"):
        owner_prefix(user, project)


def test_what_is_no_job_or_has_no_name_has_no_key() -> None:
    with pytest.raises(ValueError, match="no-job"):
        output_key(JobId("no-job"), {}, COMMAND)
    with pytest.raises(ValueError, match="owner and a name"):
        output_key(JOB, {}, COMMAND, name="")
    with pytest.raises(ValueError, match="empty"):
        payload_key(QUEUE, {}, CommandId(""))


def belongs(key: str, asked: tuple[JobId, dict[str, str], CommandId | Fence, str]) -> bool:
    job, labels, by, _ = asked
    return is_output_of(key, job, labels, by)


# --- Whatever the labels --------------------------------------------------------------------------
@given(outputs, outputs)
def test_two_outputs_have_one_key_only_if_they_are_one(
    one: tuple[JobId, dict[str, str], CommandId | Fence, str],
    other: tuple[JobId, dict[str, str], CommandId | Fence, str],
) -> None:
    same = place_of_output(one) == place_of_output(other)
    assert (output_key(*one) == output_key(*other)) == same


@given(outputs, outputs)
def test_a_key_belongs_to_its_maker_and_to_nobody_else(
    one: tuple[JobId, dict[str, str], CommandId | Fence, str],
    other: tuple[JobId, dict[str, str], CommandId | Fence, str],
) -> None:
    assert belongs(output_key(*one[:3]), one)
    if belongs(output_key(*other), one):
        assert place_of_output((*one[:3], "")) == place_of_output((*other[:3], ""))


@given(payloads, payloads)
def test_a_payload_belongs_to_its_command_and_to_no_other(
    one: tuple[QueueName, dict[str, str], CommandId, str],
    other: tuple[QueueName, dict[str, str], CommandId, str],
) -> None:
    assert is_payload_of(payload_key(*one[:3]), *one[:3])
    if is_payload_of(payload_key(*other), *one[:3]):
        assert other[2] == one[2]


@given(texts, texts, texts, texts)
@example("a-b", "c", "a", "b-c")
@example("a", "-", "a-", "-")
def test_a_command_and_a_name_are_told_apart(one: str, name: str, other: str, third: str) -> None:
    keys = output_key(JOB, {}, CommandId(one), name), output_key(JOB, {}, CommandId(other), third)
    assert (keys[0] == keys[1]) == ((one, name) == (other, third))


@given(payloads, outputs)
def test_no_payload_lies_where_an_output_lies(
    payload: tuple[QueueName, dict[str, str], CommandId, str],
    output: tuple[JobId, dict[str, str], CommandId | Fence, str],
) -> None:
    assert payload_key(*payload) != output_key(*output)


@given(payloads, payloads)
def test_payloads_of_two_commands_have_two_keys(
    one: tuple[QueueName, dict[str, str], CommandId, str],
    other: tuple[QueueName, dict[str, str], CommandId, str],
) -> None:
    assume(one[2:] != other[2:])
    assert payload_key(*one) != payload_key(*other)


@given(outputs)
def test_no_label_leaves_its_place(
    asked: tuple[JobId, dict[str, str], CommandId | Fence, str],
) -> None:
    job, labels, _, _ = asked
    key = output_key(*asked)
    assert key == checked_key(key)
    assert len(key) < 400
    assert set(key) <= set(ascii_letters + digits + "-_.@~%/")
    segments = key.split("/")
    assert all(len(segment) <= SEGMENT_CHARS_MAX for segment in segments)
    assert not any(segment.startswith(".") for segment in segments)
    assert key.startswith(job_prefix(job, labels))
    assert len(segments) == (8 if {"user", "project"} <= set(labels) else 6)
    assert segments[-2] == "output"


@given(texts, maybe, outputs)
def test_a_prefix_covers_exactly_its_owner(
    user: str,
    project: str | None,
    asked: tuple[JobId, dict[str, str], CommandId | Fence, str],
) -> None:
    labels = asked[1]
    covered = output_key(*asked).startswith(owner_prefix(user, project))
    is_theirs = labels.get("user") == user and project in (None, labels.get("project"))
    assert covered == is_theirs


@pytest.mark.parametrize(("one", "other"), [("a", "ab"), ("a", "A"), ("a", "a/"), ("a", "a%2f")])
def test_users_with_like_names_are_strangers(one: str, other: str) -> None:
    key = output_key(JOB, {"user": other}, COMMAND)
    assert not key.startswith(owner_prefix(one))


def test_names_too_long_for_a_segment_differ_by_their_ends() -> None:
    one, other = (owner_prefix("u" * 255 + end) for end in "12")
    assert one != other
    assert len(one) == len(other) == len("users//") + SEGMENT_CHARS_MAX


@given(texts | st.text(max_size=5))
def test_a_key_that_passes_has_only_names_between_slashes(key: str) -> None:
    try:
        checked_key(key)
    except InvalidKey:
        return
    assert not {"", ".", ".."} & set(key.split("/"))
    assert min(key) >= " "

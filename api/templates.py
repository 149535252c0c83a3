"""Templates: how jobs of a type behave, by version."""

from __future__ import annotations

from functools import partial

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace
from starlette.responses import Response

from api.answers import accepted_response, json_response, written_response
from api.bodies import TemplatesQuery
from api.decisions import data_of, decide, found, refuse_if_match, shown
from api.gateway import Undecided
from api.jobs import ACCEPTED
from api.lists import list_response
from api.operation import Answer, Ask, Operation
from api.problems import refused
from api.views import TemplateList, TemplatePage
from ledger.domain.commands import PutTemplate, Template
from ledger.domain.ids import QueueName
from ledger.domain.operator_views import TemplateView, template_view
from projections.answers import TemplateVersion


class _Put(Struct, frozen=True, gc=False):
    """What the owner says of a put."""

    version: int
    created: bool
    put_at: str | None = None
    put_by: str | None = None


async def list_templates(ask: Ask) -> Response:
    query: TemplatesQuery = ask.query
    await shown(ask)
    newest = await ask.services.reads.templates(query.queue, query.type)
    return list_response(
        query,
        map(_view, newest.items),
        _place,
        newest.positions,
        listed=TemplateList,
        paged=TemplatePage,
    )


def _place(template: TemplateView) -> str:
    return f"{template.queue} {template.type}"


def _view(stored: TemplateVersion) -> TemplateView:
    return template_view(
        stored.queue, stored.type, stored.version, stored.template, stored.put_at, stored.by
    )


async def read_template(ask: Ask) -> Response:
    return await _read(ask, None)


async def read_version(ask: Ask) -> Response:
    number = ask.path["n"]
    if not (number.isascii() and number.isdecimal() and len(number) <= 15):
        raise refused("TEMPLATE_NOT_FOUND", "a version is a number from 1 on")
    return await _read(ask, int(number))


async def _read(ask: Ask, version: int | None) -> Response:
    queue, job_type = ask.path["queue"], ask.path["type"]
    what = f"no template {job_type} in {queue}" + (f" has version {version}" if version else "")
    read = partial(ask.services.reads.template, queue, job_type, version)
    partition = ask.services.partition_of(QueueName(queue))
    stored = await found(ask, partition, read, "TEMPLATE_NOT_FOUND", what)
    return json_response(_view(stored), position=f"{stored.partition}:{stored.offset}")


async def put_template(ask: Ask) -> Response:
    refuse_if_match(ask)
    queue, job_type = QueueName(ask.path["queue"]), ask.path["type"]
    template: Template = replace(
        ask.body,
        payload_schema=_unless_null(ask.body.payload_schema),
        output_schema=_unless_null(ask.body.output_schema),
    )
    decision = await decide(ask, PutTemplate(queue, job_type, template))
    if isinstance(decision, Undecided):
        return accepted_response(decision)
    put = data_of(decision, _Put)
    view = template_view(queue, job_type, put.version, template)
    if put.put_at is not None:
        view = replace(view, put_at=put.put_at, put_by=put.put_by)
    else:  # It was there before: the view may know since when.
        stored = await ask.services.reads.template(queue, job_type, put.version)
        view = view if stored is None else _view(stored)
    is_first = put.created and put.version == 1
    return written_response(
        view,
        status=201 if is_first else 200,
        position=decision.position,
        replayed=decision.replayed,
        location=ask.request.url.path if is_first else "",
    )


def _unless_null(schema: Raw | UnsetType) -> Raw | UnsetType:
    """As a reader sees that there is none."""
    return UNSET if schema is UNSET or bytes(schema) == b"null" else schema


_PATH = "/v1/queues/{queue}/templates/{type}"
_TEMPLATE = Answer(content=TemplateView, description="The template")

OPERATIONS = (
    Operation(
        method="GET",
        path="/v1/templates",
        name="listTemplates",
        tag="templates",
        summary="List templates, the newest version of each",
        endpoint=list_templates,
        query=TemplatesQuery,
        is_read=True,
        answers={200: Answer(content=TemplateList | TemplatePage, description="By queue and type")},
    ),
    Operation(
        method="GET",
        path=_PATH,
        name="readTemplate",
        tag="templates",
        summary="Read the newest version of a template",
        endpoint=read_template,
        is_read=True,
        answers={200: _TEMPLATE},
        codes=("TEMPLATE_NOT_FOUND", "QUEUE_NOT_FOUND"),
        unknown="TEMPLATE_NOT_FOUND",
    ),
    Operation(
        method="PUT",
        path=_PATH,
        name="putTemplate",
        tag="templates",
        summary="Make the next version of a template, unless the newest says the same",
        endpoint=put_template,
        body=Template,
        is_command=True,
        answers={
            200: Answer(content=TemplateView, description="The next version, or an equal one"),
            201: Answer(
                content=TemplateView, description="The first version", headers=("Location",)
            ),
            202: ACCEPTED,
        },
        codes=("QUEUE_NOT_FOUND", "ENTRY_TOO_LARGE"),
    ),
    Operation(
        method="GET",
        path=f"{_PATH}/versions/{{n}}",
        name="readTemplateVersion",
        tag="templates",
        summary="Read a version of a template",
        endpoint=read_version,
        is_read=True,
        answers={200: _TEMPLATE},
        codes=("TEMPLATE_NOT_FOUND", "QUEUE_NOT_FOUND"),
        unknown="TEMPLATE_NOT_FOUND",
    ),
)

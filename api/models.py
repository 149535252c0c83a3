"""Models: HTTP targets, and the jobs that call them."""

from __future__ import annotations

from functools import partial
from typing import Any

from msgspec import Raw, Struct
from msgspec.structs import replace
from starlette.responses import Response

from api.answers import accepted_response, json_response, written_response
from api.bodies import ModelCall, Paging, fields_of
from api.decisions import data_of, decide, found, id_of, refuse_if_match, shown
from api.gateway import Undecided
from api.jobs import ACCEPTED, EARLIER, NEW, OF_REQUESTS, request_of
from api.lists import list_response
from api.operation import Answer, Ask, Operation
from api.problems import refused
from api.sealing import check_api_key_header, digest_of, sealed_api_key
from api.views import DeletedView, ModelList, ModelPage
from ledger.domain.commands import DeleteModel, Model, PutModel
from ledger.domain.ids import MODELS_QUEUE
from ledger.domain.operator_views import ModelView, model_view
from projections.answers import ModelState


class _Said(Struct, frozen=True, gc=False):
    """What the owner says of a model after a put."""

    model: Raw
    created: bool


# --- Read ----------------------------------------------------------------------------------------
async def list_models(ask: Ask) -> Response:
    query: Paging = ask.query
    await shown(ask)
    all_ = await ask.services.reads.models()
    return list_response(
        query, map(_view, all_.items), _name, all_.positions, listed=ModelList, paged=ModelPage
    )


def _view(stored: ModelState) -> ModelView:
    return model_view(stored.name, stored.model)


def _name(model: ModelView) -> str:
    return model.name


async def read_model(ask: Ask) -> Response:
    name = ask.path["name"]
    read = partial(ask.services.reads.model, name)
    partition = ask.services.partition_of(MODELS_QUEUE)
    stored = await found(ask, partition, read, "MODEL_NOT_FOUND", f"there is no model {name}")
    return json_response(_view(stored), position=f"{stored.partition}:{stored.offset}")


# --- Changed -------------------------------------------------------------------------------------
async def put_model(ask: Ask) -> Response:
    refuse_if_match(ask)
    name, model = ask.path["name"], ask.body
    content: Any = ask.value
    if model.api_key_header is not None:
        check_api_key_header(model.api_key_header)
    if isinstance(model.api_key, str):
        content = {**content, "api_key": digest_of(model.api_key, f"{name} {ask.key}")}
        model = replace(model, api_key=sealed_api_key(ask, name, model.api_key))
    command_id = id_of(ask, content)
    decision = await decide(ask, PutModel(name, model), command_id=command_id)
    if isinstance(decision, Undecided):
        return accepted_response(decision)
    if decision.data is None:
        raise refused("MODEL_NOT_FOUND", "answered before; the model was deleted since")
    said = data_of(decision, _Said)
    return written_response(
        said.model,
        status=201 if said.created else 200,
        position=decision.position,
        replayed=decision.replayed,
        location=ask.request.url.path if said.created else "",
    )


async def delete_model(ask: Ask) -> Response:
    refuse_if_match(ask)
    decision = await decide(ask, DeleteModel(ask.path["name"]))
    if isinstance(decision, Undecided):
        return accepted_response(decision)
    return written_response(DeletedView(), position=decision.position, replayed=decision.replayed)


async def call_model(ask: Ask) -> Response:
    fields = fields_of(ask.body)
    return await request_of(ask, {**fields, "type": ask.path["name"], "queue": MODELS_QUEUE})


# --- The table -----------------------------------------------------------------------------------
_PATH = "/v1/models/{name}"
_MODEL = Answer(content=ModelView, description="The model, less its key")

OPERATIONS = (
    Operation(
        method="GET",
        path="/v1/models",
        name="listModels",
        tag="models",
        summary="List models",
        endpoint=list_models,
        query=Paging,
        is_read=True,
        answers={200: Answer(content=ModelList | ModelPage, description="Models by name")},
    ),
    Operation(
        method="GET",
        path=_PATH,
        name="readModel",
        tag="models",
        summary="Read a model",
        endpoint=read_model,
        is_read=True,
        answers={200: _MODEL},
        codes=("MODEL_NOT_FOUND",),
        unknown="MODEL_NOT_FOUND",
    ),
    Operation(
        method="PUT",
        path=_PATH,
        name="putModel",
        tag="models",
        summary="Say where a model is called, and how",
        endpoint=put_model,
        body=Model,
        is_command=True,
        answers={
            200: _MODEL,
            201: Answer(content=ModelView, description="A new model", headers=("Location",)),
            202: ACCEPTED,
        },
        codes=("MODEL_NOT_FOUND",),
    ),
    Operation(
        method="DELETE",
        path=_PATH,
        name="deleteModel",
        tag="models",
        summary="Delete a model: no new calls of it",
        endpoint=delete_model,
        is_command=True,
        answers={200: Answer(content=DeletedView, description="It is gone"), 202: ACCEPTED},
        codes=("MODEL_NOT_FOUND",),
        unknown="MODEL_NOT_FOUND",
    ),
    Operation(
        method="POST",
        path=f"{_PATH}/calls",
        name="callModel",
        tag="models",
        summary="Ask for a call of a model: a job in the queue `models`",
        endpoint=call_model,
        body=ModelCall,
        is_command=True,
        moves=True,
        answers={200: EARLIER, 201: NEW, 202: ACCEPTED},
        codes=("MODEL_NOT_FOUND", *OF_REQUESTS),
        unknown="MODEL_NOT_FOUND",
    ),
)

"""Jobs: asked for, read, listed, cancelled, run again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw
from starlette.responses import Response

from api.answers import (
    job_response,
    json_response,
    not_modified,
    raw_response,
    stored_response,
)
from api.bodies import AsOf, BulkCancel, Cancellation, JobsQuery, NewJob, Paging, Rerun
from api.conditions import etag, spares
from api.decisions import Decided, decide, find, if_version, job_answer, refuse_if_match, unknown_job
from api.gateway import Undecided
from api.answers import accepted_response
from api.input import checked_inline
from api.operation import Answer, Ask, Operation
from api.paging import Keyed, page_of, total_pages
from api.positions import position_text
from api.problems import invalid, refused
from api.views import (
    AcceptedView,
    AttemptList,
    BulkView,
    EventList,
    EventPage,
    JobList,
    JobPage,
    attempt_view,
    event_view,
)
from ledger.domain.canonical import sha256_hex
from ledger.domain.commands import CancelJob, CancelJobs, RequestJob, RerunJob, Where
from ledger.domain.ids import Micros, parse_rfc3339
from ledger.domain.job_view import JobView, job_view
from projections.answers import JobFilter, Stored
from projections.reads import BadCursor

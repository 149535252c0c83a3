"""Records and what they mean: entries of the events log, commands, replies. See the parts."""

from __future__ import annotations

from ledger.log.command_codec import (
    Misshapen,
    Unreadable,
    command_from,
    command_record,
    partition_for,
    routing_key,
    topic_of,
)
from ledger.log.replies import Outcome, Reply, reply_from, reply_record

__all__ = [
    "Misshapen",
    "Outcome",
    "Reply",
    "Unreadable",
    "command_from",
    "command_record",
    "partition_for",
    "reply_from",
    "reply_record",
    "routing_key",
    "topic_of",
]

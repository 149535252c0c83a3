"""Where a stream of all events stands, as the id of each of them: a place in every partition.

`0:120,1:88.3,2:-1`: partition by partition the offset up to which all was told; `.3` where one
record concerns several jobs and only the first four of those were. Without such a part it is what
`Ledger-Position` says, so that a stream can begin where a list that was read ends.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from api.problems import invalid
from projections.change_feed import ALL_OF_IT, Place

_ONE = re.compile(r"\s*(\d{1,6}):(-1|\d{1,18})(?:\.(\d{1,6}))?\s*")
LENGTH_MAX = 4_096
NOWHERE: Place = (-1, ALL_OF_IT)


def whole(offset: int) -> Place:
    return offset, ALL_OF_IT


def place_text(partition: int, place: Place) -> str:
    offset, index = place
    return f"{partition}:{offset}" if index == ALL_OF_IT else f"{partition}:{offset}.{index}"


def id_text(places: Mapping[int, Place]) -> str:
    return ",".join(place_text(partition, places[partition]) for partition in sorted(places))


def parse_id(text: str, partitions: int) -> dict[int, Place]:
    """Of the partitions that stand in it. Raises `Refused`."""
    places: dict[int, Place] = {}
    for one in text.split(",") if len(text) <= LENGTH_MAX else [""]:
        match = _ONE.fullmatch(one)
        if match is None or int(match[1]) >= partitions:
            raise invalid("/last_event_id", "no event of this ledger has such an id")
        index = ALL_OF_IT if match[3] is None else int(match[3])
        places[int(match[1])] = (int(match[2]), index)
    return places

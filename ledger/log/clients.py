"""Which clients speak to the brokers: aiokafka's, unless a simulation brings its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient

Make = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """Called with the arguments that aiokafka's classes take; what they make is used as those are,
    and raises aiokafka's errors."""

    producer: Make = AIOKafkaProducer
    consumer: Make = AIOKafkaConsumer
    admin: Make = AIOKafkaAdminClient

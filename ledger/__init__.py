"""A job ledger on Kafka: every job is a fold over its events, and the log is the only truth.

Import from the submodules: `ledger.domain` (the rules), `ledger.log` (Kafka), `ledger.client` (what
users write against).
"""

__version__ = "0.1.0"

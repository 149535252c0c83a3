"""The `ledger` command, where everything is put together."""

"""The HTTP side: queries, the gateway for commands, live updates, the dashboard."""

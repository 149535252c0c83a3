"""Secrets, sealed before they reach the log: AES-256-GCM under the keys of a key ring."""

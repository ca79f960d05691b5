"""Prompts as keys: identical requests share one run."""

from __future__ import annotations

import hashlib
import json


def prompt_hash(prompt: str) -> str:
    """SHA-256 of a prompt, in hex."""
    return hashlib.sha256(prompt.encode()).hexdigest()


def request_key(payload: str) -> str:
    """The idempotency key of a job for an agent: its prompt's hash, and a hash of everything else that was asked for.

    Two jobs with the same prompt and, say, different targets are two runs; the very same request is one.
    """
    rest = json.loads(payload)
    prompt = str(rest.pop("promptHash", ""))
    rest.pop("prompt", None)
    told = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return f"{prompt}:{hashlib.sha256(told.encode()).hexdigest()[:16]}"

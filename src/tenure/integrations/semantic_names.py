"""The names under which tracing and metrics tell of jobs: OpenTelemetry's semantic conventions for messaging, v1.44.

They are still in development there, so they stand here and nowhere else. Names of our own begin with `tenure.`.
"""

from __future__ import annotations

from typing import Final

SYSTEM: Final = "messaging.system"
SYSTEM_NAME: Final = "tenure"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
MESSAGE_ID: Final = "messaging.message.id"
BATCH_COUNT: Final = "messaging.batch.message_count"
ERROR_TYPE: Final = "error.type"

KIND: Final = "tenure.job.kind"
ATTEMPT: Final = "tenure.job.attempt"
MAX_ATTEMPTS: Final = "tenure.job.max_attempts"
OUTCOME: Final = "tenure.job.outcome"
"""How an attempt ended: completed, failed, rejected, released, suspended, stopped."""

ENQUEUE: Final = "enqueue"
PROCESS: Final = "process"
SETTLE: Final = "settle"
SEND_TYPE: Final = "send"

OPERATION_SECONDS: Final = "messaging.client.operation.duration"
SENT: Final = "messaging.client.sent.messages"
CONSUMED: Final = "messaging.client.consumed.messages"
PROCESS_SECONDS: Final = "messaging.process.duration"
OPERATION_EDGES: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""The buckets that the conventions ask for, in seconds. An SDK's own suit milliseconds: nearly all would be in one."""
PROCESS_EDGES: Final = (*OPERATION_EDGES, 30.0, 60.0, 300.0, 1800.0, 3600.0)
"""Handlers may take hours."""

SENTRY_PUBLISH: Final = "queue.publish"
SENTRY_PROCESS: Final = "queue.process"
SENTRY_LATENCY: Final = "messaging.message.receive.latency"
SENTRY_RETRIES: Final = "messaging.message.retry.count"

"""Requests. Each is one transaction: what it writes and the tasks it enqueues come together, or not at all."""

import json
from typing import Any

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST

from letters.models import Delivery, Letter, Subscriber
from letters.tasks import fan_out


@csrf_exempt
@require_POST
def subscribe(request: HttpRequest) -> JsonResponse:
    """Add people: all of the list, or none if one of them is there already."""
    with transaction.atomic():
        made = [Subscriber.objects.create(email=email) for email in json.loads(request.body)["emails"]]
    return JsonResponse({"subscribers": len(made)}, status=201)


@csrf_exempt
@require_POST
def send(request: HttpRequest) -> JsonResponse:
    """Write a letter and send it. With an empty subject nothing happens: the task was enqueued, and is taken back."""
    asked: dict[str, Any] = json.loads(request.body)
    with transaction.atomic():
        letter = Letter.objects.create(subject=asked["subject"])
        result = fan_out.enqueue(letter.id)
        if not letter.subject:
            transaction.set_rollback(True)
            return JsonResponse({"error": "a letter needs a subject", "task": result.id}, status=400)
    return JsonResponse({"letter": letter.id, "task": result.id}, status=202)


@require_GET
def show(request: HttpRequest, letter_id: int) -> JsonResponse:
    """How far a letter is, and the task that sends it, if it is named."""
    found: dict[str, Any] = {"delivered": Delivery.objects.filter(letter_id=letter_id).count()}
    if task_id := request.GET.get("task"):
        result = fan_out.get_result(task_id)
        found |= {"status": result.status, "recipients": result.return_value if result.is_finished else None}
    return JsonResponse(found)

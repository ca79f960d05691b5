"""Tasks, in Django's own words: nothing in this file knows of Tenure."""

try:
    from django.tasks import TaskContext, task  # Django 6
except ImportError:
    from django_tasks import TaskContext, task  # the backport, on Django 5.2

from letters.models import Delivery, Letter, Subscriber


@task(queue_name="letters", takes_context=True)
def deliver(context: TaskContext, letter_id: int, subscriber_id: int) -> bool:
    """Deliver a letter to one person, once. Whether this attempt did it."""
    letter, subscriber = Letter.objects.get(id=letter_id), Subscriber.objects.get(id=subscriber_id)
    _, is_new = Delivery.objects.get_or_create(
        letter=letter,
        subscriber=subscriber,
        defaults={"text": f"{letter.subject}, {subscriber.email}!", "task_id": context.task_result.id},
    )
    return is_new


@task
def fan_out(letter_id: int) -> int:
    """Enqueue a delivery for everyone. Answers how many there are."""
    ids = list(Subscriber.objects.order_by("id").values_list("id", flat=True))
    for subscriber_id in ids:
        deliver.enqueue(letter_id, subscriber_id)
    return len(ids)

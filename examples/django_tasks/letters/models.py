"""The tables."""

from django.db import models


class Subscriber(models.Model):
    """A person who gets letters."""

    email = models.EmailField(unique=True)


class Letter(models.Model):
    """A letter to everyone."""

    subject = models.CharField(max_length=200)


class Delivery(models.Model):
    """One letter to one person: there can be only one of it, so a task that runs twice sends once."""

    letter = models.ForeignKey(Letter, on_delete=models.CASCADE)
    subscriber = models.ForeignKey(Subscriber, on_delete=models.CASCADE)
    text = models.TextField()
    task_id = models.CharField(max_length=36)

    class Meta:
        """The rule."""

        constraints = [models.UniqueConstraint(fields=["letter", "subscriber"], name="once")]

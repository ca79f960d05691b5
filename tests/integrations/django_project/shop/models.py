"""One table that handlers write to."""

from typing import Any

from django.db import models


class Entry(models.Model):
    """A word."""

    word: Any = models.CharField(max_length=100)

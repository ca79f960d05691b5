"""Settings: SQLite, Django's tasks on Tenure, one app."""

import os
from pathlib import Path

BASE_DIR = Path(__file__).parents[1]
SECRET_KEY = os.environ.get("SECRET_KEY", "only for this example")
DEBUG = False
USE_TZ = True
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
ROOT_URLCONF = "newsletter.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["tenure.integrations.django", "letters"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("DATABASE", str(BASE_DIR / "db.sqlite3")),
        # A transaction that reads first and then writes would be refused while a worker writes.
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 30},
    }
}
TASKS = {
    "default": {
        "BACKEND": "tenure.integrations.django.backend.TenureBackend",
        "QUEUES": ["default", "letters"],
        "OPTIONS": {"max_attempts": 3},
    }
}

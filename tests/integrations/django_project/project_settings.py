"""Settings of the test project. The database comes from the environment, in Django's words."""

import json
import os
from typing import Any

import django

SECRET_KEY = "only for tests"
DEBUG = False
USE_TZ = True
ALLOWED_HOSTS = ["testserver"]
ROOT_URLCONF = "project_urls"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    *(["django_tasks"] if django.VERSION < (6,) else []),
    "tenure.integrations.django",
    "shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DATABASES: dict[str, dict[str, Any]] = {"default": json.loads(os.environ["PROJECT_DATABASE"])}
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
TEST_RUNNER = "tenure.integrations.django.testing.TenureRunner"
TENURE: dict[str, Any] = {"CONSOLE_URL": "https://console.example/"}
TASKS: dict[str, dict[str, Any]] = {
    "default": {
        "BACKEND": "tenure.integrations.django.backend.TenureBackend",
        "QUEUES": ["default", "mail", "queue-1"],
        "OPTIONS": {"max_attempts": 1},
    }
}

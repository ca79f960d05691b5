"""The project's commands: `python manage.py migrate`, `runserver`, `tenure worker`."""

import os
import sys

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "newsletter.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)

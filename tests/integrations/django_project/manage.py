"""The management script of the project that tests/integrations/test_django.py runs."""

import os
import sys

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project_settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)

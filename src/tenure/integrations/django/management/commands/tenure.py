"""`manage.py tenure …`: the command line of Tenure with the project's app and database."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from tenure.cli.main import run
from tenure.integrations.django.project import project_app

TARGET = "tenure.integrations.django.command_app:app"


class Command(BaseCommand):
    """Passes everything on."""

    help = "Run a command of Tenure's on this project: worker, jobs ls, stats, serve and all others. See `tenure -h`."
    requires_system_checks = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """Take the arguments as they are: Django's own options are not looked for among them."""
        sys.exit(pass_on(argv[2:]))

    def add_arguments(self, parser: CommandParser) -> None:
        """For `call_command("tenure", "jobs", "ls")`."""
        parser.add_argument("arguments", nargs=argparse.REMAINDER)

    def handle(self, *args: str, **options: Any) -> None:
        """The same from Python. Raises SystemExit if the command failed."""
        code = pass_on([*args, *options.get("arguments", ())])
        if code:
            sys.exit(code)


def pass_on(arguments: list[str]) -> int:
    """Carry out a command line on the project's app. Processes that it starts find the project by the environment."""
    folders = [sys.path[0] or str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])]
    chosen = {
        "TENURE_APP": TARGET,
        "TENURE_URL": project_app().url,
        "PYTHONPATH": os.pathsep.join(folders),
    }
    before, argv = {name: os.environ.get(name) for name in chosen}, sys.argv
    os.environ.update(chosen)
    sys.argv = ["tenure", *arguments]
    try:
        return run(arguments)
    finally:
        sys.argv = argv
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value

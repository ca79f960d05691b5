"""The guide for Django is a project: its files are written as they stand, and its commands run."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import tenure

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "django.md"
BLOCK = re.compile(r"^```python file=(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ABOVE = """\
SECRET_KEY = "only for this test"
USE_TZ = True
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3"}}
"""
BELOW = """
INSTALLED_APPS = [*(name for name in INSTALLED_APPS if name is not ...), "shop"]
"""
MODELS = """\
from django.db import models


class Order(models.Model):
    is_confirmed = models.BooleanField(default=False)
"""
CALL = "from django.http import HttpRequest; from shop.views import buy; print(buy(HttpRequest()).content.decode())"
WORK = "from tenure.integrations.django import app; app.run_worker(drain=True)"
SHOW = "from shop.models import Order; print(Order.objects.get().is_confirmed)"


def test_the_project_of_the_guide_works(tmp_path: Path) -> None:
    files: dict[str, str] = defaultdict(str)
    for name, code in BLOCK.findall(PAGE.read_text()):
        files[name] += code
    files["settings.py"] = ABOVE + files["settings.py"] + BELOW
    files |= {"shop/__init__.py": "", "shop/models.py": MODELS}
    (tmp_path / "shop").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    def manage(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-m", "django", *arguments, "--settings", "settings", "--pythonpath", "."],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "Tenure: applied" in manage("migrate", "--run-syncdb")
    assert manage("shell", "--verbosity", "0", "--command", CALL) == "1\n"
    # `manage.py tenure worker --drain`, without the file manage.py.
    manage("shell", "--verbosity", "0", "--command", WORK)

    assert manage("shell", "--verbosity", "0", "--command", SHOW) == "True\n"
    with tenure.App(f"sqlite:///{tmp_path}/db.sqlite3") as app:
        assert [(job.kind, job.state) for job in app.jobs()] == [("confirm", "succeeded")]

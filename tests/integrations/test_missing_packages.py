"""An integration without its framework says what to install; nothing of Tenure's own needs one."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
import tenure
try:
    import tenure.integrations.{module}
except tenure.TenureError as exc:
    print(exc.code, exc)
"""


@pytest.mark.parametrize(
    ("module", "package", "advice"),
    [
        ("fastapi", "fastapi", "missing_package tenure.integrations.fastapi needs 'fastapi'"),
        ("starlette", "starlette", "pip install starlette"),
        ("flask", "flask", "pip install flask"),
        ("django", "django", "pip install django"),
        ("sqlalchemy", "sqlalchemy", "pip install sqlalchemy"),
        ("structlog", "structlog", "pip install structlog"),
        ("pydantic_ai", "pydantic_ai", "pip install pydantic-ai"),
        ("openai_agents", "agents", "pip install openai-agents"),
        ("opentelemetry", "opentelemetry", "pip install 'tenure[otel]'"),
        ("sentry", "sentry_sdk", "pip install 'tenure[sentry]'"),
    ],
)
def test_a_framework_that_is_not_there_is_named(module: str, package: str, advice: str) -> None:
    code = WITHOUT.format(hidden={package}, module=module)

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert advice in done.stdout

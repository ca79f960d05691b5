"""Requirements of the HTTP door that no other file shows. SECURITY.md lists all of them with their tests."""

from __future__ import annotations

import re
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

import tenure
from tenure.cli.main import find_command
from tenure.model.ids import new_job_id
from tenure.store.access import SealAudit
from tests.web.conftest import Server
from tests.web.test_bounds import asked
from tests.web.test_serve import serving

ROOT = Path(__file__).parents[2]


@pytest.mark.anyio
async def test_websockets_are_closed_before_anything_is_looked_at(small: Server) -> None:
    said: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: dict[str, Any]) -> None:
        said.append(message)

    scope = {"type": "websocket", "path": "/api/v1/events", "headers": [(b"host", b"evil.test")], "query_string": b""}
    await small.asgi(scope, receive, send)

    assert said == [{"type": "websocket.close", "code": 1008}]


@pytest.mark.anyio
async def test_an_id_of_another_tenant_costs_what_an_unknown_one_costs(tmp_path: Path) -> None:
    """Neither what is answered nor what is asked of the store tells them apart, so no clock does either."""
    with tenure.App(f"sqlite:///{tmp_path / 'a.db'}") as a, tenure.App(f"sqlite:///{tmp_path / 'b.db'}") as b:
        server = Server({"a": a, "b": b})
        foreign = b.enqueue("k", key="taken").id
        ways = []
        async with server.client(a.access.new_token("t", ["read:meta", "operate", "enqueue:*"]).text) as client:
            await client.get("/api/v1/me")
            for job_id in (foreign, new_job_id()):
                found = []
                for verb, path in (("GET", ""), ("GET", "/events"), ("POST", "/cancel"), ("POST", "/revive")):
                    with asked(server) as requests:
                        answer = await client.request(
                            verb, f"/api/v1/jobs/{job_id}{path}", json=None if verb == "GET" else {"reason": "r"}
                        )
                    told = {name: value for name, value in answer.json().items() if name != "request_id"}
                    names = [type(one).__name__ for one in requests if not isinstance(one, SealAudit)]
                    found.append((answer.status_code, told, names))
                ways.append(found)
            keyed = await client.post("/api/v1/jobs", json={"kind": "k", "key": "taken"})

    assert ways[0] == ways[1]
    assert all(requests for _, _, requests in ways[0])
    assert keyed.status_code == 201
    assert not keyed.json()["jobs"][0]["duplicate"]


@pytest.mark.anyio
async def test_no_route_serves_files_and_no_producer_names_a_path(small: Server) -> None:
    async with small.client(small.token("enqueue:*", "read:meta")) as client:
        refused = await client.post("/api/v1/jobs", json={"kind": "k", "artifacts_path": "/etc/passwd"})
        job_id = (await client.post("/api/v1/jobs", json={"kind": "k"})).json()["jobs"][0]["id"]
        tried = [
            (await client.get(f"/api/v1/jobs/{job_id}/{path}")).status_code
            for path in ("artifacts", "artifacts/passwd", "artifacts/..%2f..%2fetc%2fpasswd", "files/etc/passwd")
        ]

    assert (refused.status_code, tried) == (422, [404] * 4)


@pytest.mark.anyio
@pytest.mark.parametrize("path", ["/docs", "/redoc", "/openapi.json", "/api/v1/docs", "/debug", "/ui/static/../../x"])
async def test_there_is_no_page_about_the_api_without_credentials(small: Server, path: str) -> None:
    async with small.client() as client:
        assert (await client.get(path)).status_code in {401, 404}


def test_no_option_switches_debugging_or_reloading_on() -> None:
    options = {option for parameter in find_command("serve").params for option in parameter.opts}

    assert "--host" in options
    assert not [option for option in options if re.search(r"debug|reload|docs|insecure|no-auth", option)]


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_tls_is_new_enough_and_tells_browsers_to_stay_with_it(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: apt-get install openssl")
    made = f"-keyout {key} -out {cert} -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    curve = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1"
    subprocess.run(f"openssl req -x509 {curve} -nodes -days 2 {made}".split(), check=True, capture_output=True)
    key.chmod(0o600)
    trusting = ssl.create_default_context(cafile=str(cert))
    old = ssl.create_default_context(cafile=str(cert))
    old.minimum_version = ssl.TLSVersion.TLSv1
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")

    with serving("--url", f"sqlite:///{tmp_path / 'jobs.db'}", "--tls-cert", str(cert), "--tls-key", str(key)) as said:
        base = f"https://localhost:{str(said['url']).rpartition(':')[2]}"
        answer = httpx.get(f"{base}/healthz", verify=trusting)
        with pytest.raises(httpx.ConnectError, match=r"alert|EOF"):  # the server's word, not the client's own
            httpx.get(f"{base}/healthz", verify=old)
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{base}/healthz")  # its certificate is signed by none that a client trusts

    assert str(said["url"]).startswith("https://")
    assert answer.headers["strict-transport-security"]


def test_every_requirement_names_tests_that_exist() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    table = text.partition("## Requirements of the HTTP door")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (R\d+) \|.*\|(.*)\|$", table, re.MULTILINE)
    missing = []
    for number, tests in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", tests)
        if not named:
            missing.append(f"{number}: no test")
        for path, name in named:
            file = ROOT / path
            if not file.is_file() or (name and not re.search(rf"def {name}\(", file.read_text())):
                missing.append(f"{number}: {path}::{name}")

    assert [number for number, _ in rows] == [f"R{number}" for number in range(1, 36)]
    assert missing == []

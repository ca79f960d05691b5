"""Embedders: each by its name, none downloads, each refuses what it cannot do."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from tenure.errors import ConfigError
from tenure.flow.embedders import open_embedder
from tenure.sandbox.ssrf import AddressBlocked, RequestFailed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model2vec folder of four words."""
    tokenizer = Tokenizer(models.WordLevel({"brake": 0, "disc": 1, "price": 2, "[UNK]": 3}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    vectors = np.array([[1, 0], [0, 1], [-1, 0], [0, 0]], dtype=np.float32)
    save_file({"embeddings": vectors}, tmp_path / "model.safetensors")
    return tmp_path


def test_words_makes_no_vectors() -> None:
    embedder = open_embedder("words")

    assert (embedder.name, embedder.dim, embedder.embed(["a", "b"])) == ("words", 0, [[], []])


@pytest.mark.parametrize("size", [64, 128, 256])
def test_wordllama_is_read_from_its_wheel(size: int) -> None:
    embedder = open_embedder(f"wordllama:{size}")

    [near, like, far, nothing] = embedder.embed(["brake discs", "brake rotors", "winter sale", ""])

    assert (embedder.name, embedder.dim, len(near)) == (f"wordllama:{size}", size, size)
    assert np.linalg.norm(near) == pytest.approx(1.0, abs=1e-3)
    assert np.dot(near, like) > np.dot(near, far)
    assert not any(nothing)


def test_a_folder_of_the_users_own_is_read(folder: Path) -> None:
    embedder = open_embedder(f"file:{folder}")

    vectors = embedder.embed(["brake disc", "price", "unheard"])

    assert embedder.dim == 2
    assert vectors == [pytest.approx([0.5**0.5, 0.5**0.5]), [-1.0, 0.0], [0.0, 0.0]]
    save_file({"embeddings": np.eye(4, 2, dtype=np.float32)}, folder / "model.safetensors")
    assert open_embedder(f"file:{folder}").name != embedder.name  # another model, so its vectors do not mix


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("luck", "no embedder"),
        ("words:2", "no embedder"),
        ("wordllama:7", "64, 128 or 256"),
        ("file:/nowhere", "model2vec folder"),
        ("openai:https://host", "openai:URL#MODEL"),
        ("openai:https://host/v1#m?dim=no", "openai:URL#MODEL"),
        ("openai:http://example.com/v1#m?dim=3", "https"),
    ],
)
def test_a_name_that_means_nothing_is_refused_with_what_would(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        open_embedder(name)


def test_the_environment_names_the_embedder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_EMBEDDER", "wordllama:64")
    assert open_embedder().name == "wordllama:64"
    monkeypatch.delenv("TENURE_EMBEDDER")
    assert open_embedder().name == "wordllama:256"  # the extra is installed here


class Endpoint(BaseHTTPRequestHandler):
    """An endpoint that speaks OpenAI's /embeddings: the vector is what the text says."""

    asked: list[dict[str, Any]] = []  # noqa: RUF012 - shared by design: one server per test
    status = 200

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append({"path": self.path, "key": self.headers.get("Authorization"), **body})
        rows = [{"index": n, "embedding": [len(text), 0.0, 1.0]} for n, text in enumerate(body["input"])]
        answer = json.dumps({"data": rows[::-1]}).encode()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name in the base class
        pass


@pytest.fixture
def endpoint() -> Iterator[str]:
    Endpoint.asked, Endpoint.status = [], 200
    server = HTTPServer(("127.0.0.1", 0), Endpoint)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"openai:http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()
    thread.join()


def test_an_endpoint_is_asked_in_batches(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_EMBEDDER_KEY", "k-1")
    embedder = open_embedder(f"{endpoint}#bge-small?dim=3")

    vectors = embedder.embed(["x" * n for n in range(150)])

    assert [len(one["input"]) for one in Endpoint.asked] == [100, 50]
    assert {(one["path"], one["model"], one["key"]) for one in Endpoint.asked} == {
        ("/v1/embeddings", "bge-small", "Bearer k-1")
    }
    assert vectors[3] == pytest.approx([3 / 10**0.5, 0.0, 1 / 10**0.5])
    assert "k-1" not in embedder.name


def test_an_endpoint_that_answers_wrongly_is_told(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="dim=3"):
        open_embedder(f"{endpoint}#m?dim=4").embed(["x"])
    Endpoint.status = 503
    with pytest.raises(RequestFailed, match="503"):
        open_embedder(f"{endpoint}#m?dim=3").embed(["x"])


def test_where_clouds_keep_their_secrets_is_not_asked() -> None:
    embedder = open_embedder("openai:https://169.254.169.254/v1#m?dim=3")

    with pytest.raises(AddressBlocked):
        embedder.embed(["x"])

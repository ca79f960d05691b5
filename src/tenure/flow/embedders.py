"""Embedders: from a text to a vector that lies near those of texts that mean the same.

| name | what it is |
|---|---|
| `words` | none: memories are found by their words alone |
| `wordllama:256` | static vectors of English tokens, from the files inside the wheel `wordllama` (extra `memory`) |
| `file:PATH` | a model2vec folder of the user's own, read by the same libraries |
| `openai:URL#MODEL?dim=N` | any endpoint that speaks OpenAI's `/embeddings` |

Nothing is ever downloaded: `wordllama`'s own loader would, so its two files are opened directly. numpy and its
neighbours are imported when the first text is embedded.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import threading
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import parse_qs, urlsplit

from tenure.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    import numpy as np

EMBEDDER_VARIABLE: Final = "TENURE_EMBEDDER"
KEY_VARIABLES: Final = ("TENURE_EMBEDDER_KEY", "OPENAI_API_KEY")
"""Where the key for an endpoint is taken from; sent over https, or to this machine, only."""
TOKENS_MAX: Final = 4096
"""Tokens of one text that count."""
_WORDLLAMA: Final = "wordllama:256"
_LIBRARIES: Final = ("numpy", "tokenizers", "safetensors", "wordllama")
_SIZES: Final = (64, 128, 256)
_BATCH: Final = 100


class Embedder(Protocol):
    """Makes vectors. `name` is kept with each one: vectors of two names are never compared."""

    @property
    def name(self) -> str: ...

    @property
    def dim(self) -> int:
        """How long its vectors are; 0: it makes none."""
        ...

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector of length 1 for each text; all zeros for a text of which it knows no part. May block."""
        ...


class Words:
    """Makes no vectors."""

    name = "words"
    dim = 0

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        return [[] for _ in texts]


class TokenVectors:
    """The mean of the vectors of a text's tokens: no network of neurons, thousands of texts a second."""

    def __init__(self, name: str, dim: int, load: Callable[[], tuple[Any, Any, Any]]) -> None:
        self.name = name
        self.dim = dim
        self._load = load
        self._loaded: tuple[Any, Any, Any] | None = None
        self._lock = threading.Lock()

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """See Embedder."""
        import numpy as np

        with self._lock:
            if self._loaded is None:
                self._loaded = self._load()
        tokenizer, vectors, weights = self._loaded
        made: list[list[float]] = []
        for encoded in tokenizer.encode_batch(list(texts), add_special_tokens=False):
            ids = np.asarray(encoded.ids, dtype=np.int64)
            rows = vectors[ids].astype(np.float32)
            if weights is not None:
                rows = rows * weights[ids][:, None]
            made.append(_unit(rows.sum(axis=0) if len(ids) else np.zeros(self.dim, np.float32)))
        return made


class Endpoint:
    """Vectors from a server that speaks OpenAI's `/embeddings`. Its address is judged before every request."""

    def __init__(self, url: str, model: str, dim: int) -> None:
        self.name = f"openai:{model}?dim={dim}@{urlsplit(url).netloc.rpartition('@')[2]}"
        self.dim = dim
        self._url = f"{url.rstrip('/')}/embeddings"
        self._model = model

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """See Embedder. Raises: RequestFailed (no good answer), AddressBlocked, ConfigError."""
        return [vector for first in range(0, len(texts), _BATCH) for vector in self._ask(texts[first : first + _BATCH])]

    def _ask(self, texts: Sequence[str]) -> list[list[float]]:
        from tenure.sandbox.ssrf import RequestFailed, SsrfPolicy, request

        host = urlsplit(self._url).hostname or ""
        is_near = _is_near(host)
        # The operator named the host, so its own network may be meant; clouds' metadata addresses stay shut.
        policy = SsrfPolicy(allow_hosts=frozenset({host}), allow_private=True, allow_http=is_near)
        headers = {"Content-Type": "application/json"}
        key = next((os.environ[name] for name in KEY_VARIABLES if os.environ.get(name)), None)
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        body = json.dumps({"model": self._model, "input": list(texts)}).encode()
        answer = request("POST", self._url, policy=policy, headers=headers, body=body, max_body=64 << 20)
        if answer.status != 200:
            raise RequestFailed(f"The embedder {self.name} answered with status {answer.status}. Try again later.")
        return self._vectors(answer.body, len(texts))

    def _vectors(self, body: bytes, count: int) -> list[list[float]]:
        try:
            rows = sorted(json.loads(body)["data"], key=lambda row: row["index"])
            vectors = [[float(number) for number in row["embedding"]] for row in rows]
        except (ValueError, KeyError, TypeError) as exc:
            raise ConfigError(f"The embedder {self.name} answered with something else than embeddings.") from exc
        if len(vectors) != count or any(len(vector) != self.dim for vector in vectors):
            found = len(vectors[0]) if vectors else 0
            raise ConfigError(
                f"The embedder {self.name} answered with {len(vectors)} vectors of {found} numbers, where {count} of "
                f"{self.dim} were asked for. Name the right length: ?dim={found}."
            )
        return [_unit_of(vector) for vector in vectors]


def open_embedder(name: str | None = None) -> Embedder:
    """The embedder of this name; without one, that of TENURE_EMBEDDER, else wordllama's where it is installed.

    Raises: ConfigError (no such embedder), MissingExtra.
    """
    asked = name or os.environ.get(EMBEDDER_VARIABLE) or (_WORDLLAMA if _is_installed() else "words")
    sort, _, rest = asked.partition(":")
    match sort:
        case "words" if not rest:
            return Words()
        case "wordllama":
            return _wordllama(rest or "256")
        case "file" if rest:
            return _folder(Path(rest))
        case "openai" if rest:
            return _endpoint(rest)
    raise ConfigError(
        f"There is no embedder {asked!r}. Name words, wordllama:256, file:FOLDER (model2vec), or "
        "openai:URL#MODEL?dim=N, by `embedder=` or TENURE_EMBEDDER."
    )


def _is_installed() -> bool:
    return all(find_spec(name) is not None for name in _LIBRARIES)


def _wordllama(size: str) -> Embedder:
    if size not in {str(one) for one in _SIZES}:
        raise ConfigError(f"wordllama:{size}: its vectors have 64, 128 or 256 numbers.")
    if not _is_installed():
        raise MissingExtra("memory", f"The embedder wordllama:{size}")
    spec = find_spec("wordllama")
    assert spec is not None
    assert spec.origin is not None
    folder, dim = Path(spec.origin).parent, int(size)

    def load() -> tuple[Any, Any, Any]:
        vectors = _tensors(folder / "weights" / "l2_supercat_256.safetensors")["embedding.weight"]
        tokenizer = _tokenizer(folder / "tokenizers" / "l2_supercat_tokenizer_config.json")
        # The model was trained so that the first numbers alone are vectors too.
        return tokenizer, vectors[:, :dim], None

    return TokenVectors(f"wordllama:{dim}", dim, load)


def _folder(path: Path) -> Embedder:
    weights, tokens = path / "model.safetensors", path / "tokenizer.json"
    if not weights.is_file() or not tokens.is_file():
        raise ConfigError(
            f"file:{path}: a model2vec folder has model.safetensors and tokenizer.json; this one has not."
        )
    if any(find_spec(name) is None for name in _LIBRARIES[:3]):
        raise MissingExtra("memory", f"The embedder file:{path}")
    tensors = _tensors(weights)
    if "embeddings" not in tensors:
        raise ConfigError(f"file:{path}: model.safetensors has no tensor `embeddings`, so it is no model2vec model.")
    vectors, mapping, shares = tensors["embeddings"], tensors.get("mapping"), tensors.get("weights")
    if mapping is not None:  # several tokens may share a vector
        vectors = vectors[mapping]
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()[:12]
    return TokenVectors(
        f"file:{path.name}@{digest}", int(vectors.shape[1]), lambda: (_tokenizer(tokens), vectors, shares)
    )


def _endpoint(rest: str) -> Embedder:
    url, _, fragment = rest.partition("#")
    model, _, query = fragment.partition("?")
    dim = parse_qs(query).get("dim", [""])[0]
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or not model or not dim.isdecimal() or not int(dim):
        raise ConfigError(
            f"openai:{parts.hostname or rest[:20]}…: write openai:URL#MODEL?dim=N, as in "
            "openai:http://127.0.0.1:8080/v1#bge-small?dim=384."
        )
    if parts.scheme == "http" and not _is_near(parts.hostname):
        raise ConfigError(f"openai:{parts.hostname}: texts go to another machine over https only, not http.")
    return Endpoint(url, model, int(dim))


def _is_near(host: str) -> bool:
    """Whether the host is this machine, or an address of its own network."""
    from ipaddress import ip_address

    try:
        return host == "localhost" or ip_address(host).is_private
    except ValueError:
        return False


def _tensors(path: Path) -> dict[str, Any]:
    from safetensors import safe_open

    with safe_open(path, framework="np") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping


def _tokenizer(path: Path) -> Any:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_padding()
    tokenizer.enable_truncation(TOKENS_MAX)
    return tokenizer


def _unit(vector: np.ndarray) -> list[float]:
    import numpy as np

    length = float(np.linalg.norm(vector))
    unit: list[float] = (vector / length if length else vector).tolist()
    return unit


def _unit_of(vector: list[float]) -> list[float]:
    length = math.sqrt(sum(number * number for number in vector))
    return [number / length for number in vector] if length else vector

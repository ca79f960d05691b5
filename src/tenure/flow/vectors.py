"""Vectors of one model, kept in this process and compared by numpy, where the store cannot compare them itself.

All are read once, in pages; later reads bring what was written since. A memory costs 4 bytes per number. What was
forgotten stays in the matrix until it is found missing: then the whole is read anew.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from tenure.store.memory import Scope, Vectors

if TYPE_CHECKING:
    import numpy as np

_FIRST: Final = 1024


class VectorCache:
    """The vectors of one model. Threads may share it."""

    def __init__(self, model: str, dim: int) -> None:
        self.model = model
        self.mark: str | None = None
        """Up to where the store was read."""
        self._dim = dim
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Forget everything; the next read begins anew."""
        import numpy as np

        with self._lock:
            self.mark = None
            self._ids: list[str] = []
            self._places: dict[str, int] = {}
            self._matrix: np.ndarray = np.zeros((_FIRST, self._dim), np.float32)
            self._labels: np.ndarray = np.zeros((_FIRST, 3), np.int32)
            self._codes: dict[str | None, int] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def take(self, page: Vectors) -> None:
        """Add a page, and go on behind it."""
        import numpy as np

        with self._lock:
            for memory_id, agent, kind, tenant, raw in page.rows:
                vector = np.frombuffer(raw, dtype=">f4")
                if len(vector) != self._dim:
                    continue
                place = self._places.get(memory_id)
                if place is None:
                    place = self._places[memory_id] = len(self._ids)
                    self._ids.append(memory_id)
                    self._grow(place)
                length = float(np.linalg.norm(vector))
                self._matrix[place] = vector / length if length else 0.0
                self._labels[place] = [self._code(agent), self._code(kind), self._code(tenant)]
            self.mark = page.mark

    def nearest(self, vector: Sequence[float], scope: Scope, limit: int) -> list[str]:
        """The ids of the nearest, best first."""
        import numpy as np

        with self._lock:
            count = len(self._ids)
            if not count:
                return []
            likeness = self._matrix[:count] @ np.asarray(vector, np.float32)
            allowed = self._allowed(scope, count)
            if allowed is not None:
                likeness = np.where(allowed, likeness, -2.0)
            best = np.argpartition(-likeness, min(limit, count) - 1)[:limit]
            best = best[np.argsort(-likeness[best], kind="stable")]
            return [self._ids[place] for place in best if likeness[place] > 0.0]

    def _allowed(self, scope: Scope, count: int) -> Any:
        import numpy as np

        allowed = None
        asked = (scope.agents, scope.kinds, [scope.tenant] if scope.tenant is not None else [])
        for column, names in enumerate(asked):
            if names:
                codes = [self._codes[name] for name in names if name in self._codes]
                one = np.isin(self._labels[:count, column], codes)
                allowed = one if allowed is None else allowed & one
        return allowed

    def _grow(self, place: int) -> None:
        import numpy as np

        if place >= len(self._matrix):
            self._matrix = np.vstack([self._matrix, np.zeros_like(self._matrix)])
            self._labels = np.vstack([self._labels, np.zeros_like(self._labels)])

    def _code(self, name: str | None) -> int:
        return self._codes.setdefault(name, len(self._codes))

"""A small proxy that knows PostgreSQL's messages, to lose a reply at the worst moment: after COMMIT, before it arrives.

It reads the server's messages only as far as needed: a type byte, a length, a body. A reply with `CommandComplete` was
to a statement that ran; `ReadyForQuery` says that its transaction is over: what is dropped there was committed.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

_COMPLETE = ord("C")
_READY = ord("Z")


class Proxy:
    """Listens on a port of its own and passes everything on, until it is told to lose a reply."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._armed = threading.Event()
        self._open: list[socket.socket] = []
        self.lost = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def lose_next_reply(self) -> None:
        """The next whole reply is dropped once the server says that it is done, and the connection is cut."""
        self._armed.set()

    def close(self) -> None:
        for end in (self._listener, *self._open):
            _shut(end)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self._open += [client, server]
                threading.Thread(target=self._pass_on, args=[client, server], daemon=True).start()
                threading.Thread(target=self._answer, args=[client, server], daemon=True).start()

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                server.sendall(data)
        _shut(client)
        _shut(server)

    def _answer(self, client: socket.socket, server: socket.socket) -> None:
        held: list[bytes] = []
        with contextlib.suppress(OSError):
            for message in _messages(server):
                if not self._armed.is_set():
                    client.sendall(message)
                    continue
                held.append(message)
                if message[0] != _READY:
                    continue
                if any(part[0] == _COMPLETE for part in held):
                    self._armed.clear()
                    self.lost += 1
                    break
                client.sendall(b"".join(held))  # nothing ran yet: a statement was prepared
                held.clear()
        _shut(client)
        _shut(server)


def _messages(server: socket.socket) -> Iterator[bytes]:
    buffer = b""
    while data := server.recv(65536):
        buffer += data
        while len(buffer) >= 5:
            end = 1 + int.from_bytes(buffer[1:5], "big")
            if len(buffer) < end:
                break
            yield buffer[:end]
            buffer = buffer[end:]


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()

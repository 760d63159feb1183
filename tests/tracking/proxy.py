"""What stands between fedray and its store: a proxy that requires a user and a password in front of MLflow's server,
and can refuse all requests for a while; a client whose process dies."""

import base64
import contextlib
import http.client
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

USER, PASSWORD = "alice", "pa55/wo%rd+x"


class Proxy(ThreadingHTTPServer):
    """A proxy before the server on port `target` of this machine.

    Attributes:
        refuse: status of every reply; 0: only requests without password get 401.
        delay: seconds before each reply.
        drip: seconds between two bytes of a reply.
        seen: paths of all requests.
        most: largest number of requests that waited at once."""

    def __init__(self, target: int) -> None:
        self.target, self.refuse, self.delay, self.drip = target, 0, 0.0, 0.0
        self.seen: list[str] = []
        self.most, self._waiting, self._lock = 0, 0, threading.Lock()
        super().__init__(("127.0.0.1", 0), Handler)

    def wait(self, path: str) -> None:
        """Note a request, and let it wait."""
        with self._lock:
            self.seen.append(path)
            self._waiting += 1
            self.most = max(self.most, self._waiting)
        time.sleep(self.delay)
        with self._lock:
            self._waiting -= 1

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class Quiet(BaseHTTPRequestHandler):
    """Logs nothing."""

    def log_message(self, *_: Any) -> None:
        pass


class Handler(Quiet):
    """Passes a request on and its answer back, whole."""

    protocol_version = "HTTP/1.1"
    server: Proxy

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        expected = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        status = self.server.refuse or (0 if self.headers.get("Authorization") == expected else 401)
        self.server.wait(self.path)
        answer, kind = b"go away", "text/plain"
        if not status:
            headers = {k: v for k, v in self.headers.items() if k not in ("Host", "Authorization", "Connection")}
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.server.target, timeout=60)) as there:
                there.request(self.command, self.path, body, headers)
                response = there.getresponse()
                status, answer = response.status, response.read()
                kind = response.headers.get("Content-Type", kind)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        if self.command != "HEAD":
            for k in range(len(answer)) if self.server.drip else ():
                self.wfile.write(answer[k : k + 1])
                time.sleep(self.server.drip)
            self.wfile.write(b"" if self.server.drip else answer)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = _pass_on


@contextlib.contextmanager
def serving(server: type[BaseHTTPRequestHandler] | Proxy) -> Iterator[Any]:
    """Let a proxy, or a server of this machine with such a handler, answer in a thread."""
    with server if isinstance(server, Proxy) else ThreadingHTTPServer(("127.0.0.1", 0), server) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        try:
            yield made
        finally:
            made.shutdown()


class Killed(BaseException):
    """What no code of fedray survives."""


class Dying:
    """MLflow's client in a process that is killed when it has made so many writes."""

    def __init__(self, client: Any, writes: int) -> None:
        self._client, self.left = client, writes

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("create_", "log_", "set_", "update_", "delete_")):
            if not self.left:
                raise Killed
            self.left -= 1
        return getattr(self._client, name)

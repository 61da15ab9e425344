"""/metrics, /healthz and /readyz, from a thread of their own: they answer while the event loop does not."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from schemas.errors import InvalidConfiguration

Check = Callable[[], dict[str, str]]
"""What is wrong, by name; empty: nothing."""


class HealthServer:
    """Serves until it is closed. `port` is the one that was really taken, where 0 was asked for."""

    def __init__(self, host: str, port: int, is_alive: Check, is_ready: Check) -> None:
        checks = {"/healthz": is_alive, "/readyz": is_ready}

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/metrics":
                    self._answer(200, CONTENT_TYPE_LATEST, generate_latest())
                elif self.path in checks:
                    problems = checks[self.path]()
                    body = json.dumps({"ok": not problems, "problems": problems}).encode()
                    self._answer(503 if problems else 200, "application/json", body)
                else:
                    self._answer(404, "text/plain", b"/metrics, /healthz, /readyz\n")

            def _answer(self, status: int, content_type: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        try:
            self._server = ThreadingHTTPServer((host, port), Handler)
        except OSError as error:
            raise InvalidConfiguration(
                "worker.port", f"{host}:{port} cannot be listened on: {error.strerror}", "choose another port, or 0"
            ) from error
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, name="health", daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()

"""A firewall around Gradio: which hosts, paths, origins, files and sizes are allowed, and what a browser may load.

Gradio serves far more than this page uses. Everything that is not listed here is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

HOSTS = ("localhost", "127.0.0.1", "[::1]")
# The browser enforces that the page loads from, and sends to, its own origin only.
POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "worker-src 'self' blob:",
        "frame-ancestors 'self'",
        "form-action 'self'",
        "base-uri 'self'",
    )
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)
PATHS = {"/", "/config", "/config/", "/theme.css", "/favicon.ico", "/robots.txt", "/manifest.json"}
PATHS |= {
    f"/gradio_api/{name}" for name in ("info", "theme.css", "queue/data", "upload_progress", "startup-events", "app_id")
}
PREFIXES = ("/assets/", "/static/", "/svelte/", "/gradio_api/heartbeat/")
FILE = "/gradio_api/file="
UPLOAD = "/gradio_api/upload"
POST_PATHS = {UPLOAD, *(f"/gradio_api/{name}" for name in ("queue/join", "run/predict", "cancel", "reset", "reset/"))}
MAX_BODY = 2**20  # bytes of a request that is not an upload
# What browsers send. Anything that Gradio might read as another boundary is refused, since parts are counted by it.
FORM = re.compile(r"multipart/form-data; *boundary=([\w'()+,./:=?-]{1,70})")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Guard:
    """An ASGI application around that of Gradio.

    Args:
        app: The application to protect.
        hosts: The host names that it answers to; None for any.
        max_upload: The largest upload, in bytes.
        max_total: The largest total size of all uploads, in bytes.
        max_files: The largest number of files in one upload.
        max_total_files: The number of stored uploads from which on no more are accepted.
        uploads: The folder of the uploads. No other file is served.
    """

    def __init__(
        self,
        app: Any,
        *,
        hosts: tuple[str, ...] | None,
        max_upload: int,
        max_total: int,
        max_files: int,
        max_total_files: int,
        uploads: Path,
    ) -> None:
        self._app, self._hosts, self._uploads = app, hosts, uploads.resolve()
        self._max_upload, self._max_total = max_upload, max_total
        self._max_files, self._max_total_files = max_files, max_total_files
        self.closing: Callable[[], bool] = lambda: False

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}
        refusal = self._check(scope, headers)
        if refusal is None and scope["method"] == "POST":
            receive, refusal = await self._check_body(scope, receive)
        if refusal is not None:
            await _refuse(send, *refusal)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *HEADERS]
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except asyncio.CancelledError:  # the server shuts down while a stream to a browser is open
            if not self.closing():
                raise

    def _check(self, scope: Message, headers: dict[str, str]) -> tuple[int, str] | None:
        """Return the status and the text of a refusal, or None if the request is allowed."""
        # Against DNS rebinding: a foreign host name that resolves to this machine would share its origin.
        if self._hosts is not None and headers.get("host", "").rsplit(":", 1)[0] not in self._hosts:
            return 403, "This page answers to localhost only."
        path, method = scope["path"], scope["method"]
        if method in ("GET", "HEAD") and path.startswith(FILE):  # Gradio would fetch a url
            return None if self._is_upload(path.removeprefix(FILE)) else (403, "File not found.")
        if method == "POST" and _is_cross_origin(headers):
            return 403, "Requests from other sites are refused."
        if path == UPLOAD and self._is_full():
            return 507, "There is no room for more uploads at the moment. Try again in an hour."
        allowed_get = method in ("GET", "HEAD") and (path in PATHS or path.startswith(PREFIXES))
        if not allowed_get and not (method == "POST" and path in POST_PATHS):
            return 404, "Page not found."
        length = headers.get("content-length") or "0"
        if not length.isdecimal() or int(length) > self._max_body(path):
            return 413, f"The upload is too large: at most {self._max_upload / 1e6:.0f} MB are accepted."
        return None

    def _max_body(self, path: str) -> int:
        return self._max_upload + 2**16 if path == UPLOAD else MAX_BODY  # with room for the multipart headers

    async def _check_body(self, scope: Message, receive: Receive) -> tuple[Receive, tuple[int, str] | None]:
        """Limit an upload; read any other body and refuse it if it names a file that is not an upload."""
        if scope["path"] == UPLOAD:
            boundary = _find_boundary(scope)
            if boundary is None:
                return receive, (400, "The upload is not a form with files.")
            return self._limit_upload(receive, self._max_body(UPLOAD), boundary), None
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return receive, (400, "The request is incomplete.")
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > MAX_BODY:
                return receive, (413, "The request is too large.")
        try:
            content = json.loads(body or b"null")
        except (ValueError, RecursionError):
            return receive, (400, "The request is not JSON.")
        if self._names_foreign_file(content):
            return receive, (403, "Only files that were uploaded here can be used.")
        pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return pending.pop() if pending else await receive()

        return replay, None

    def _limit_upload(self, receive: Receive, maximum: int, boundary: bytes) -> Receive:
        """Disconnect when a body without a length, or with a wrong one, becomes too long, or holds too many files."""
        remaining, boundaries, end = maximum, self._max_files + 1, b""  # one boundary before each file, and the last

        async def receive_counted() -> Message:
            nonlocal remaining, boundaries, end
            message = await receive()
            body = message.get("body", b"")
            remaining -= len(body)
            boundaries -= (end + body).count(boundary)
            end = (end + body)[1 - len(boundary) :]  # a boundary may continue in the next message
            return message if remaining >= 0 and boundaries >= 0 else {"type": "http.disconnect"}

        return receive_counted

    def _names_foreign_file(self, content: Any) -> bool:
        """Return whether the content names a file outside the uploads. Gradio names files by their paths."""
        if isinstance(content, list):
            return any(self._names_foreign_file(part) for part in content)
        if not isinstance(content, dict):
            return False
        path = content.get("path")
        if path is not None and not (isinstance(path, str) and self._is_upload(path)):
            return True
        return any(self._names_foreign_file(part) for part in content.values())

    def _is_upload(self, path: str) -> bool:
        try:
            return os.path.isabs(path) and Path(path).resolve().is_relative_to(self._uploads)
        except (ValueError, OSError):  # not a valid file name
            return False

    def _is_full(self) -> bool:
        """Return whether the uploads take too much room, or are too many."""
        total = count = 0
        for folder, _, names in os.walk(self._uploads):
            for name in names:
                count += 1
                with contextlib.suppress(OSError):  # deleted in the meantime
                    total += os.stat(os.path.join(folder, name)).st_size
        return total > self._max_total or count >= self._max_total_files


def _find_boundary(scope: Message) -> bytes | None:
    """Return what separates the parts of a form, or None if the request is not a form as browsers send it."""
    types = [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == b"content-type"]
    match = FORM.fullmatch(types[0]) if len(types) == 1 else None
    return f"--{match[1]}".encode() if match else None


def _is_cross_origin(headers: dict[str, str]) -> bool:
    """Return whether, according to the browser, a page of another origin sends this request."""
    origin = headers.get("origin")
    return headers.get("sec-fetch-site") == "cross-site" or (
        origin is not None and urlsplit(origin).netloc != headers.get("host")
    )


async def _refuse(send: Send, status: int, text: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), *HEADERS]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})

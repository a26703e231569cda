"""Around the page: who may ask, for what, how much they may send, and what their browser may load.

Gradio offers far more than this page uses. What is not listed here is not there.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

HOSTS = ("localhost", "127.0.0.1", "[::1]")
# What the page may load, and where it may send: itself. The browser holds it to that.
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
EXACT = {"/", "/config", "/config/", "/theme.css", "/favicon.ico", "/robots.txt", "/manifest.json"}
EXACT |= {
    f"/gradio_api/{name}" for name in ("info", "theme.css", "queue/data", "upload_progress", "startup-events", "app_id")
}
BELOW = ("/assets/", "/static/", "/svelte/", "/gradio_api/heartbeat/")
FILE = "/gradio_api/file="
UPLOAD = "/gradio_api/upload"
POSTED = {UPLOAD, *(f"/gradio_api/{name}" for name in ("queue/join", "run/predict", "cancel", "reset", "reset/"))}
WORDS = 2**20  # bytes of a request that is no upload

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Guard:
    """An ASGI application around Gradio's.

    hosts: the names that it answers to, None: any. most: bytes of an upload; room: of all of them.
    """

    def __init__(self, app: Any, *, hosts: tuple[str, ...] | None, most: int, room: int, uploads: Path) -> None:
        self._room = room
        self._app, self._hosts, self._most, self._uploads = app, hosts, most, uploads.resolve()
        self.closing: Callable[[], bool] = lambda: False

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}
        refused = self._refused(scope, headers)
        if refused is None and scope["method"] == "POST":
            receive, refused = await self._taken(scope["path"], receive)
        if refused is not None:
            await _refuse(send, *refused)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *HEADERS]
            await send(message)

        try:
            await self._app(scope, receive, guarded)
        except asyncio.CancelledError:  # the page is being closed, and a stream to a window was still open
            if not self.closing():
                raise

    def _refused(self, scope: Message, headers: dict[str, str]) -> tuple[int, str] | None:
        # Another site's name for this machine's address would make its pages ours to the browser.
        if self._hosts is not None and headers.get("host", "").rsplit(":", 1)[0] not in self._hosts:
            return 403, "This page answers to localhost alone."
        path, method = scope["path"], scope["method"]
        if method in ("GET", "HEAD") and path.startswith(FILE):  # an address would be fetched by this machine
            return None if self._uploaded(path.removeprefix(FILE)) else (403, "There is no such file.")
        if method == "POST" and _from_elsewhere(headers):
            return 403, "Another site's page cannot use this one."
        if path == UPLOAD and self._held() > self._room:
            return 507, "There is no room for more pictures for now. Try again in an hour."
        looked_at = method in ("GET", "HEAD") and (path in EXACT or path.startswith(BELOW))
        if not looked_at and not (method == "POST" and path in POSTED):
            return 404, "There is no such page."
        length = headers.get("content-length") or "0"
        if not length.isdecimal() or int(length) > self._limit(path):
            return 413, f"That is too large: at most {self._most / 1e6:.0f} MB are taken."
        return None

    def _limit(self, path: str) -> int:
        return self._most + 2**16 if path == UPLOAD else WORDS  # an upload comes with a few words around it

    async def _taken(self, path: str, receive: Receive) -> tuple[Receive, tuple[int, str] | None]:
        """What is sent: an upload counted as it comes, all else read and searched for files that are no uploads."""
        if path == UPLOAD:
            return self._counted(receive, self._limit(path)), None
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return receive, (400, "The request was cut off.")
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > WORDS:
                return receive, (413, "That is too large.")
        try:
            sent = json.loads(body or b"null")
        except (ValueError, RecursionError):
            return receive, (400, "The request is not JSON.")
        if self._names_foreign_file(sent):
            return receive, (403, "Only a file that was uploaded here can be used.")
        whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def again() -> Message:
            return whole.pop() if whole else await receive()

        return again, None

    def _counted(self, receive: Receive, most: int) -> Receive:
        """An upload without a length, or with a wrong one, ends where it has become too long."""
        left = [most]

        async def counting() -> Message:
            message = await receive()
            left[0] -= len(message.get("body", b""))
            return message if left[0] >= 0 else {"type": "http.disconnect"}

        return counting

    def _names_foreign_file(self, sent: Any) -> bool:
        """Whether a file is named that does not lie among the uploads. A page names files by their paths."""
        if isinstance(sent, list):
            return any(self._names_foreign_file(part) for part in sent)
        if not isinstance(sent, dict):
            return False
        path = sent.get("path")
        if path is not None and not (isinstance(path, str) and self._uploaded(path)):
            return True
        return any(self._names_foreign_file(part) for part in sent.values())

    def _uploaded(self, path: str) -> bool:
        try:
            return os.path.isabs(path) and Path(path).resolve().is_relative_to(self._uploads)
        except (ValueError, OSError):  # no name of any file
            return False

    def _held(self) -> int:
        """Bytes of all that lies among the uploads."""
        total = 0
        for folder, _, names in os.walk(self._uploads):
            for name in names:
                with contextlib.suppress(OSError):  # deleted meanwhile
                    total += os.stat(os.path.join(folder, name)).st_size
        return total


def _from_elsewhere(headers: dict[str, str]) -> bool:
    """Whether a page of another origin sends this, as a browser tells."""
    origin = headers.get("origin")
    return headers.get("sec-fetch-site") == "cross-site" or (
        origin is not None and urlsplit(origin).netloc != headers.get("host")
    )


async def _refuse(send: Send, status: int, text: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), *HEADERS]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})

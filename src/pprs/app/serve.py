"""The page on a port: of this machine alone unless it is told otherwise, and without a word to any other."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from pprs.app.context import Context
from pprs.app.style import STYLE
from pprs.errors import PprsError

LOCAL = "127.0.0.1"
HOSTS = ("localhost", "127.0.0.1", "[::1]", "::1")
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
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


def bind(port: int | None, host: str = LOCAL) -> socket.socket:
    """A port of this machine: the one asked for, else 7860 or the next that is free. 0: any."""
    tried = [port] if port is not None else [*range(7860, 7880), 0]
    for number in tried:
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind((host, number))
        except (OSError, OverflowError) as error:
            made.close()
            if port is not None:
                raise PprsError(f"port {port} cannot be used ({error}). Give another --port, or none.") from error
            continue
        return made
    raise PprsError("no port is free on this machine. Give one with --port.")


class Guard:
    """Around the page: who may ask, how much they may send, and what their browser may load."""

    def __init__(self, app: Any, *, hosts: tuple[str, ...] | None, most: int) -> None:
        self._app, self._hosts, self._most = app, hosts, most
        self.closing: Callable[[], bool] = lambda: False

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}
        # Another site's name for this machine's address would make its pages ours to the browser.
        if self._hosts is not None and headers.get("host", "").rsplit(":", 1)[0] not in self._hosts:
            await _refuse(send, 403, "This page answers to localhost alone.")
            return
        if int(headers.get("content-length") or 0) > self._most:
            await _refuse(send, 413, f"That is too large: at most {self._most / 1e6:.0f} MB are taken.")
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = (
                    (b"content-security-policy", POLICY.encode()),
                    (b"referrer-policy", b"no-referrer"),
                    (b"x-content-type-options", b"nosniff"),
                )
                message["headers"] = [*message.get("headers", []), *own]
            await send(message)

        try:
            await self._app(scope, receive, guarded)
        except asyncio.CancelledError:  # the page is being closed, and a stream to a window was still open
            if not self.closing():
                raise


async def _refuse(send: Send, status: int, text: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})


def application(context: Context, *, local: bool = True) -> Any:
    """The page as an ASGI application."""
    for name in ("GRADIO_ANALYTICS_ENABLED", "GRADIO_RUN_HISTORY", "GRADIO_MCP_SERVER"):
        os.environ[name] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    try:
        import fastapi
        import gradio as gr
    except ImportError:
        raise PprsError("the page needs Gradio. Get it with: pip install 'pprs[app]'") from None
    from pprs.app.page import build

    most = context.limits.upload_bytes
    fonts = ["system-ui", "sans-serif"]
    theme = gr.themes.Default(primary_hue="blue", font=fonts, font_mono=["ui-monospace", "monospace"]).set(
        block_info_text_color="*neutral_600",
        block_info_text_color_dark="*neutral_300",
        block_label_text_color_dark="*neutral_200",
        block_title_text_color_dark="*neutral_100",
        input_placeholder_color="*neutral_500",
    )
    app = fastapi.FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    gr.mount_gradio_app(
        app, build(context), path="", server_name=LOCAL, footer_links=[], run_history=False, max_file_size=most,
        ssr_mode=False, enable_monitoring=False, pwa=False, mcp_server=False, theme=theme, css=STYLE, show_error=True,
    )  # fmt: skip
    return Guard(app, hosts=HOSTS if local else None, most=most + 2**20)


def serve(context: Context, at: socket.socket, *, local: bool = True, ready: Callable[[], None] = lambda: None) -> None:
    """Answer at this socket until Ctrl-C."""
    import torch
    import uvicorn

    app = application(context, local=local)
    torch.set_num_threads(1)  # of the threads to come: work goes on the pool's, whose waiting does not spin
    config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="on", timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    app.closing = lambda: bool(server.should_exit)
    at.listen(128)
    ready()
    server.run(sockets=[at])

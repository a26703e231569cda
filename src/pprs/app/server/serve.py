"""Serve the page on a port: by default to this machine only. No other machine is contacted."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from pprs._support.extras import extra
from pprs.app.server.context import Context
from pprs.app.server.guard import HOSTS, Guard
from pprs.errors import ConfigurationError
from pprs.report.colours import to_css

if TYPE_CHECKING:
    import uvicorn

GRACE = 5.0  # seconds that work may take to end at shutdown
STYLE = Path(__file__).parents[1] / "static" / "style.css"
LOCALHOST, ALL_INTERFACES = "127.0.0.1", "0.0.0.0"


def bind(port: int | None, host: str = LOCALHOST) -> socket.socket:
    """Return a socket on the given port (0: any free one); by default on 7860 or the next free one."""
    candidates = [port] if port is not None else [*range(7860, 7880), 0]
    for number in candidates:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, number))
        except (OSError, OverflowError) as error:
            listener.close()
            if port is not None:
                raise ConfigurationError(
                    f"`port` {port} cannot be used ({error}). Choose another one, or none.", parameter="port"
                ) from error
            continue
        return listener
    raise ConfigurationError("no free port was found. Choose one with `port`.", parameter="port")


def build_application(context: Context, uploads: Path, *, local: bool = True) -> Guard:
    """Return the page as an ASGI application. `uploads` is a folder for uploads and downloads only."""
    for name in ("GRADIO_ANALYTICS_ENABLED", "GRADIO_RUN_HISTORY", "GRADIO_MCP_SERVER"):
        os.environ[name] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    os.environ["GRADIO_TEMP_DIR"] = str(uploads)
    with extra():
        import fastapi
        import gradio as gr
    from pprs.app.page import build_page

    limits = context.limits
    theme = gr.themes.Default(
        primary_hue="blue", font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]
    ).set(
        body_text_color_subdued="*neutral_600",
        body_text_color_subdued_dark="*neutral_300",
        block_info_text_color="*neutral_600",
        block_info_text_color_dark="*neutral_300",
        block_label_text_color_dark="*neutral_200",
        block_title_text_color_dark="*neutral_100",
        input_placeholder_color="*neutral_500",
    )
    app, page = fastapi.FastAPI(docs_url=None, redoc_url=None, openapi_url=None), build_page(context)
    gr.mount_gradio_app(
        app, page, path="", server_name=LOCALHOST, footer_links=[], run_history=False,
        max_file_size=limits.upload_bytes, ssr_mode=False, enable_monitoring=False, pwa=False, mcp_server=False,
        theme=theme, show_error=True, css=to_css() + STYLE.read_text(encoding="utf-8"),
    )  # fmt: skip
    page.has_launched = True  # otherwise Gradio accepts any path in a request as an upload
    return Guard(
        app, hosts=HOSTS if local else None, max_upload=limits.upload_bytes, max_total=limits.total_upload_bytes,
        max_files=limits.upload_files, max_total_files=limits.total_upload_files, uploads=uploads,
    )  # fmt: skip


def serve(
    context: Context, listener: socket.socket, *, local: bool = True, ready: Callable[[], None] = lambda: None
) -> None:
    """Serve on this socket until Ctrl-C, then delete all uploads. `ready` is called once the socket listens."""
    with tempfile.TemporaryDirectory(prefix="pprs-app-", ignore_cleanup_errors=True) as folder:
        app = build_application(context, Path(folder), local=local)
        import uvicorn

        torch.set_num_threads(
            1
        )  # for new threads: the work runs on the threads of the pool, which do not spin while waiting
        config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="on", timeout_graceful_shutdown=2)
        server = uvicorn.Server(config)
        app.closing = lambda: bool(server.should_exit)
        listener.listen(128)
        ready()
        threading.Thread(target=_shut_down, args=(server, context, folder), name="pprs-shutdown", daemon=True).start()
        # Uvicorn shuts down and raises the signal again, which must not end the process before the folder is deleted.
        signal.signal(signal.SIGTERM, lambda *_: None)
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[listener])


def _shut_down(server: uvicorn.Server, context: Context, folder: str) -> None:
    """At shutdown, stop all work, and end the process even if a thread is too busy to stop."""
    while not server.should_exit:
        time.sleep(0.2)
    context.sessions.stop_all()
    time.sleep(GRACE)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)

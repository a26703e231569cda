"""The page on a port: it answers this machine only, unless asked to answer others, and contacts no other machine."""

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

from pprs.app.context import Context
from pprs.app.guard import HOSTS, Guard
from pprs.app.style import STYLE
from pprs.errors import ConfigurationError, PprsError

if TYPE_CHECKING:
    import uvicorn

GRACE = 5.0  # seconds that work has to end when the page is closed
LOCAL, EVERYWHERE = "127.0.0.1", "0.0.0.0"


def bind(port: int | None, host: str = LOCAL) -> socket.socket:
    """A socket on the port asked for, else on 7860 or the next free one. 0: any port."""
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
                    f"`port` {port} cannot be used ({error}). Give another one, or none.", parameter="port"
                ) from error
            continue
        return listener
    raise ConfigurationError("no port is free on this machine. Give one as `port`.", parameter="port")


def application(context: Context, uploads: Path, *, local: bool = True) -> Guard:
    """The page as an ASGI application; `uploads` is a folder for its uploads and downloads alone."""
    for name in ("GRADIO_ANALYTICS_ENABLED", "GRADIO_RUN_HISTORY", "GRADIO_MCP_SERVER"):
        os.environ[name] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    os.environ["GRADIO_TEMP_DIR"] = str(uploads)
    try:
        import fastapi
        import gradio as gr
    except ImportError:
        raise PprsError("the page needs Gradio. Get it with: pip install 'pprs[app]'") from None
    from pprs.app.page import build

    most = context.limits.upload_bytes
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
    app, page = fastapi.FastAPI(docs_url=None, redoc_url=None, openapi_url=None), build(context)
    gr.mount_gradio_app(
        app, page, path="", server_name=LOCAL, footer_links=[], run_history=False, max_file_size=most, ssr_mode=False,
        enable_monitoring=False, pwa=False, mcp_server=False, theme=theme, css=STYLE, show_error=True,
    )  # fmt: skip
    page.has_launched = True  # else Gradio takes any path that a request names for an upload
    return Guard(app, hosts=HOSTS if local else None, most=most, room=context.limits.uploads_bytes, uploads=uploads)


def serve(context: Context, at: socket.socket, *, local: bool = True, ready: Callable[[], None] = lambda: None) -> None:
    """Serve at this socket until Ctrl-C. Uploads are deleted at the end."""
    with tempfile.TemporaryDirectory(prefix="pprs-app-", ignore_cleanup_errors=True) as folder:
        app = application(context, Path(folder), local=local)
        import uvicorn

        torch.set_num_threads(1)  # of the threads to come: work goes on the pool's, whose waiting does not spin
        config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="on", timeout_graceful_shutdown=2)
        server = uvicorn.Server(config)
        app.closing = lambda: bool(server.should_exit)
        at.listen(128)
        ready()
        threading.Thread(target=_end, args=(server, context, folder), name="pprs-end", daemon=True).start()
        # Uvicorn closes everything and then raises the signal again, which must not end us before the folder is gone.
        signal.signal(signal.SIGTERM, lambda *_: None)
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[at])


def _end(server: uvicorn.Server, context: Context, folder: str) -> None:
    """When the page is closed: end all work, and the process too if a thread is too busy to stop."""
    while not server.should_exit:
        time.sleep(0.2)
    context.sessions.end_all()
    time.sleep(GRACE)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)

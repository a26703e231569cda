"""The browser app. Gradio is imported only in `page`, `tabs` and `server.serve`, when the app starts."""

from __future__ import annotations

"""The page: a certificate that one can see. Gradio is imported in `page` and `serve` alone, and only when they run."""

from __future__ import annotations

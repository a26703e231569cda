"""Certify a classifier behind an HTTP API, with a rate limit, retries and timeouts.

    python http_classifier.py    # serves a small classifier on this machine, and certifies an image through it

With an API of your own, adapt `HttpClassifier._encode` and `_decode` to its requests and replies, and then:

    export PPRS_API_URL=https://api.example.org/classify PPRS_API_RATE=5
    pprs certify --model http_classifier:build --data FOLDER --sigma 0.25 --n 1000 --engine torch --out runs/api

A certificate holds if the API is one fixed function of the noisy image. So a change of its version ends the run, and
one request holds the images of a batch, but each must be classified on its own. Whatever the API does to an image, such
as rounding, clipping or resizing, is part of the classifier, since the noise comes first.
"""

import base64
import http.server
import json
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import pprs

RETRIED = {408, 425, 429, 500, 502, 503, 504}  # overloaded or restarting: the same request may succeed later


class ApiError(Exception):
    """The API did not answer as needed. pprs records the image as failed, and the same command tries it again."""


class RateLimit:
    """Lets at most `rate` requests per second begin, from any number of threads."""

    def __init__(
        self, rate: float, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        if not rate > 0:
            raise ValueError(f"the rate must be above 0 requests per second, not {rate}")
        self._interval, self._clock, self._sleep = 1 / rate, clock, sleep
        self._next, self._lock = clock(), threading.Lock()

    def wait(self) -> None:
        with self._lock:
            start = max(self._next, self._clock())
            self._next = start + self._interval
        if (delay := start - self._clock()) > 0:
            self._sleep(delay)


class HttpClassifier(torch.nn.Module):
    """Sends batches of images [B, C, H, W] to an API, which replies with scores [B, num_classes].

    An API that replies with labels only will do as well: make each label a row of zeros with a single one.

    Args:
        url: Address of the API. A GET returns its classes and its version, and a POST classifies.
        rate: Requests per second, at most.
        timeout: Seconds after which a request is given up.
        attempts: How often a request is sent before the image fails.
        token: Secret for the Authorization header, if the API wants one.
        sleep: Waits before the next attempt: 1, 2, 4, ... seconds, or as long as the API asks for.
    """

    def __init__(
        self,
        url: str,
        rate: float = 10.0,
        timeout: float = 30.0,
        attempts: int = 5,
        token: str | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__()
        if not url.startswith(("http://", "https://")):
            raise ValueError(f'the address must begin with http:// or https://, not "{url}"')
        self.url, self.timeout, self.attempts, self._token, self._sleep = url, timeout, attempts, token, sleep
        self._limit = RateLimit(rate)
        about = self._send(None)
        self.class_names, self.version_text = tuple(about["classes"]), str(about["version"])
        self.num_classes = len(self.class_names)
        # A buffer is part of the digest of the model, so a run is bound to the version of the API.
        self.register_buffer("version", torch.tensor(list(self.version_text.encode()), dtype=torch.uint8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._decode(self._send(self._encode(x)), len(x)).to(x.device)

    def _encode(self, x: torch.Tensor) -> dict[str, Any]:
        """The request for a batch. Noise takes pixels out of [0, 1], and nothing is clipped here."""
        values = np.ascontiguousarray(x.detach().cpu().numpy(), dtype="<f4")
        return {"shape": list(values.shape), "pixels": base64.b64encode(values.tobytes()).decode()}

    def _decode(self, reply: dict[str, Any], images: int) -> torch.Tensor:
        """The scores in a reply."""
        if reply.get("version") != self.version_text:
            raise ApiError(f"the version of the API is now {reply.get('version')}, and was {self.version_text}")
        scores = torch.tensor(reply["scores"], dtype=torch.float32)
        if scores.shape != (images, self.num_classes) or not scores.isfinite().all():
            raise ApiError(f"the API returned scores of shape {tuple(scores.shape)} for {images} images")
        return scores

    def _send(self, content: dict[str, Any] | None) -> dict[str, Any]:
        """Send a request until it succeeds, it cannot succeed, or all attempts are used up."""
        for attempt in range(self.attempts):
            self._limit.wait()
            try:
                return self._send_once(content)
            except urllib.error.HTTPError as error:
                with error:
                    text = error.read(200).decode(errors="replace")
                if error.code not in RETRIED:
                    raise ApiError(f"the API refused the request with status {error.code}: {text}") from None
                problem, pause = f"status {error.code}", error.headers.get("Retry-After", "")
            except (OSError, ValueError) as error:  # no connection, no answer in time, or an incomplete one
                problem, pause = f"{type(error).__name__}: {error}", ""
            if attempt + 1 < self.attempts:
                self._sleep(float(pause) if pause.isdecimal() else 2.0**attempt)
        raise ApiError(f"the API did not answer after {self.attempts} attempts ({problem})")

    def _send_once(self, content: dict[str, Any] | None) -> dict[str, Any]:
        body = None if content is None else json.dumps(content).encode()
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(self.url, body, headers)
        with urllib.request.urlopen(request, timeout=self.timeout) as answer:
            reply: dict[str, Any] = json.load(answer)
        return reply


def build() -> HttpClassifier:
    """Connect to the API that the environment names: the factory for `--model http_classifier:build`."""
    url = os.environ.get("PPRS_API_URL")
    if url is None:
        raise ValueError("set PPRS_API_URL to the address of the API")
    rate, timeout = float(os.environ.get("PPRS_API_RATE", "10")), float(os.environ.get("PPRS_API_TIMEOUT", "30"))
    return HttpClassifier(url, rate, timeout, token=os.environ.get("PPRS_API_TOKEN"))


# ---- a server, to try it


class Handler(http.server.BaseHTTPRequestHandler):
    """Tells dark images from bright ones."""

    def do_GET(self) -> None:
        self.reply(200, {"version": "1", "classes": ["dark", "bright"]})

    def do_POST(self) -> None:
        content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        x = np.frombuffer(base64.b64decode(content["pixels"]), "<f4").reshape(content["shape"])
        bright = x.mean(axis=(1, 2, 3)) - 0.5
        self.reply(200, {"version": "1", "scores": np.stack([-bright, bright], axis=1).tolist()})

    def reply(self, status: int, content: dict[str, Any], **headers: str) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


def main() -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        model = HttpClassifier(f"http://127.0.0.1:{server.server_port}", rate=100)
        classifier = pprs.SmoothedClassifier(model, model.num_classes, pprs.Gaussian(0.5))
        print(classifier.certify(torch.full((1, 16, 16), 0.6), n=1000))
        server.shutdown()


if __name__ == "__main__":
    main()

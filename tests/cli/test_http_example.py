"""The example of a classifier behind an API, against a server on this machine that fails as told."""

from __future__ import annotations

import http.server
import importlib.util
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from pprs import Gaussian, PprsError, Sampling, SmoothedClassifier, certify_dataset, load_model

EXAMPLES = Path(__file__).parents[2] / "examples"
IMAGES = torch.stack([torch.full((1, 8, 8), value / 255) for value in (110, 145, 200)])


class Server:
    """The server of the example, and what it is told to do with the next requests."""

    def __init__(self, example: ModuleType) -> None:
        self.faults: list[tuple[Any, ...]] = []
        self.requests: list[dict[str, str]] = []
        outer = self

        class Handler(example.Handler):  # type: ignore[name-defined, misc]
            def do_POST(self) -> None:
                outer.requests.append(dict(self.headers))
                fault, *values = outer.faults.pop(0) if outer.faults else ("none",)
                if fault == "status":
                    self.rfile.read(int(self.headers["Content-Length"]))
                    self.reply(values[0], {"error": "busy"}, **(values[1] if len(values) > 1 else {}))
                elif fault == "reply":
                    self.rfile.read(int(self.headers["Content-Length"]))
                    self.reply(200, values[0])
                else:
                    time.sleep(values[0] if fault == "delay" else 0)
                    super().do_POST()

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that gave up
        self.url = f"http://127.0.0.1:{self.http.server_port}"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("http_classifier", EXAMPLES / "http_classifier.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def server(example: ModuleType) -> Iterator[Server]:
    made = Server(example)
    thread = threading.Thread(target=made.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.http.shutdown()
    thread.join()
    made.http.server_close()


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def model(example: ModuleType, server: Server, pauses: list[float]) -> Any:
    return example.HttpClassifier(server.url, rate=1e6, attempts=3, token="secret", sleep=pauses.append)


def test_votes_are_those_of_the_classifier_behind_the_api(model: Any, server: Server) -> None:
    class Bright(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            bright = x.mean((1, 2, 3)) - 0.5
            return torch.stack([-bright, bright], dim=1)

    noise, sampling = Gaussian(1.0), {"n": 100, "n0": 20}
    through_api = SmoothedClassifier(model, 2, noise, partition=None).certify(IMAGES[1], **sampling)
    assert 10 < through_api.counts[0] < 90
    assert through_api == SmoothedClassifier(Bright(), 2, noise, partition=None).certify(IMAGES[1], **sampling)
    assert all(headers["Authorization"] == "Bearer secret" for headers in server.requests)


def test_an_overloaded_api_is_asked_again(model: Any, server: Server, pauses: list[float]) -> None:
    server.faults = [("status", 503), ("status", 429, {"Retry_After": "7"})]
    assert model(IMAGES).argmax(1).tolist() == [0, 1, 1]
    assert pauses == [1.0, 7.0]
    assert len(server.requests) == 3


def test_a_late_answer_is_asked_for_again(model: Any, server: Server, pauses: list[float]) -> None:
    model.timeout, server.faults = 0.1, [("delay", 0.4)]
    assert model(IMAGES).argmax(1).tolist() == [0, 1, 1]
    assert pauses == [1.0]


def test_errors_name_the_cause(model: Any, server: Server, example: ModuleType) -> None:
    server.faults = [("status", 500)] * 3
    with pytest.raises(example.ApiError, match=r"did not answer after 3 attempts \(status 500\)"):
        model(IMAGES)
    server.requests.clear()
    server.faults = [("status", 400)]
    with pytest.raises(example.ApiError, match="status 400: .*busy"):
        model(IMAGES)
    assert len(server.requests) == 1
    server.faults = [("reply", {"version": "2", "scores": [[0, 1]] * 3})]
    with pytest.raises(example.ApiError, match="version of the API is now 2, and was 1"):
        model(IMAGES)
    for scores in ([[0, 1]], [[0, 1]] * 2 + [[0, float("nan")]]):
        server.faults = [("reply", {"version": "1", "scores": scores})]
        with pytest.raises(example.ApiError, match="scores of shape"):
            model(IMAGES)
    with pytest.raises(ValueError, match="begin with http"):
        example.HttpClassifier("file:///etc/hostname")


def test_requests_are_spread_over_time(example: ModuleType) -> None:
    now, pauses = [0.0], list[float]()

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    limit = example.RateLimit(4, clock=lambda: now[0], sleep=sleep)
    for _ in range(3):
        limit.wait()
    assert pauses == [0.25, 0.25]
    now[0] += 10
    limit.wait()  # time that passed without requests is not saved up
    limit.wait()
    assert pauses == [0.25, 0.25, 0.25]
    with pytest.raises(ValueError, match="above 0"):
        example.RateLimit(0)


def test_a_run_goes_on_after_the_api_failed(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setenv("PPRS_API_URL", server.url)
    monkeypatch.setenv("PPRS_API_RATE", "100000")

    def certify(name: str) -> Any:
        return certify_dataset(
            "http_classifier:build", (IMAGES, torch.tensor([0, 1, 1])), noise=Gaussian(0.5), engine="torch",
            partition="none", sampling=Sampling(20, 60, 0.01), out=tmp_path / name, progress=False,
        )  # fmt: skip

    assert load_model("http_classifier:build").class_names == ("dark", "bright")
    server.requests.clear()
    complete = certify("complete")
    sent = len(server.requests)
    # The last batch of votes fails, and so does the first attempt to ask afterwards whether the network has changed.
    server.faults = [("none",)] * (sent - 2) + [("status", 400)] * 2
    assert [failure.idx for failure in certify("run").failures()] == [2]
    run = certify("run")
    assert not run.failures()
    assert [row.counts for row in run.rows()] == [row.counts for row in complete.rows()]


def test_a_missing_address_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.delenv("PPRS_API_URL", raising=False)
    with pytest.raises(PprsError, match="set PPRS_API_URL"):
        load_model("http_classifier:build")


def test_the_example_certifies_an_image(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    example.main()
    assert "class 1: no change of L2 norm up to" in capsys.readouterr().out

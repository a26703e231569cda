"""Every block of docs/integrations.md runs, with MLflow's file store, and with a stand-in for Weights & Biases."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import matplotlib.pyplot as plt
import mlflow
import pytest
from helpers import pprs

from pprs.runs import digest_run

PAGE = Path(__file__).resolve().parents[2] / "docs" / "integrations.md"


class FakeWandb:
    """What the page uses of wandb, which needs an account."""

    def __init__(self) -> None:
        self.summary: dict[str, float] = {}
        self.logged: dict[str, Any] = {}

    def init(self, project: str, config: dict[str, Any]) -> FakeWandb:
        self.config = config
        return self

    def __enter__(self) -> FakeWandb:
        return self

    def __exit__(self, *error: object) -> None: ...

    def log(self, values: dict[str, Any]) -> None:
        self.logged |= values

    def Table(self, dataframe: Any) -> Any:
        return dataframe


def test_every_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)  # type: ignore[arg-type]
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.chdir(tmp_path)
    previous = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    names: dict[str, Any] = {"__name__": "page"}
    try:
        for language, code in re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(), re.M | re.S):
            for command in code.splitlines() if language == "bash" else ():
                if not command.startswith("pip "):
                    program, *arguments = shlex.split(command)
                    assert program == "pprs"
                    pprs(*arguments, cwd=tmp_path)
            if language == "python":
                exec(compile(code, PAGE.name, "exec"), names)
        check(SimpleNamespace(**names), tmp_path)
        check_logs(names["run"], wandb)
    finally:
        mlflow.set_tracking_uri(previous)
        plt.close("all")


def check(page: Any, folder: Path) -> None:
    assert page.prediction.tolist() == [0, 1, 1, -1]
    assert page.accuracy.compute().tolist()[0] == 0.75
    assert page.mask.shape == (1, 1, 8, 8)
    assert page.search.best_params_.keys() == page.grid.keys()
    assert page.schema["title"] == "Results of certifying a data set"
    assert (folder / "report.html").is_file()
    results = huggingface_hub.ModelCard((folder / "README.md").read_text()).data.eval_results
    assert results[0].metric_value == 0.75


def check_logs(run: Any, wandb: FakeWandb) -> None:
    (stored,) = mlflow.search_runs(output_format="list")
    assert stored.data.metrics["certified_accuracy/0"] == 0.75
    assert stored.data.params["alpha"] == "0.001"
    assert stored.data.tags["run_digest"] == digest_run(run) == wandb.config["run_digest"]
    assert wandb.summary["average_certified_radius"] == stored.data.metrics["average_certified_radius"] > 0
    assert len(wandb.logged["rows"]) == 4

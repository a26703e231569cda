"""Exported results follow their schema, name the same run, and a report reads a folder of them."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from greys import Bright, certify
from helpers import pprs

from pprs import Run, open_run, write_report
from pprs.runs import COLUMNS, RunSettings, digest_run, export, list_runs
from pprs.runs.export import EXPORTED, LABELS, PLACE

KINDS = {"int64": "integer", "double": "number", "string": "string"}


def schema() -> Any:
    return json.loads(files("pprs.runs").joinpath("results.schema.json").read_text(encoding="utf-8"))


def write(run: Run, out: Path) -> Path:
    out.parent.mkdir(parents=True, exist_ok=True)
    export(run.checked_outcomes(), run.settings, out.suffix[1:], out, run.fair_order())
    return out


def test_the_schema_is_valid_and_describes_every_column_and_setting() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    parts = schema()["properties"]
    rows, settings = parts["rows"]["items"]["properties"], parts["settings"]["properties"]
    assert list(rows) == [*(column.name for column in COLUMNS), *EXPORTED, LABELS, PLACE]
    assert list(settings) == list(RunSettings(signal_levels=255).to_dict())
    for name, kind in ({column.name: column.arrow for column in COLUMNS} | EXPORTED).items():
        assert KINDS[kind] in rows[name]["type"], name
    assert all(part["description"] for part in [*rows.values(), *settings.values()])


@pytest.mark.parametrize("options", [{}, {"target_error": 0.3}, {"labels": None, "partition": "grid:size=4"}])
def test_exported_results_follow_the_schema_and_are_read_back(tmp_path: Path, options: dict[str, Any]) -> None:
    run = certify(tmp_path / "run", **options)
    out = write(run, tmp_path / "rows.json")
    content = json.loads(out.read_text())
    jsonschema.validate(content, schema())
    back = open_run(out)
    assert back.rows() == run.rows()
    assert back.settings == run.settings
    assert digest_run(back) == digest_run(run)


@pytest.mark.parametrize(
    "change",
    [{"radius": -1}, {"radius": "0.5"}, {"predict": -2}, {"predict": None}, {"idx": 1.5}, {"counts": [1, 2]}],
)
def test_the_schema_refuses_what_is_no_result(change: dict[str, Any]) -> None:
    row = {"idx": 0, "label": 1, "predict": 1, "radius": 0.5}
    jsonschema.validate({"rows": [row]}, schema())  # no more than the log of Cohen et al. has
    for wrong in ({"rows": [row | change]}, {"rows": [{"idx": 0}]}, {}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema())


def test_a_failed_image_is_a_row_of_the_schema(tmp_path: Path) -> None:
    class Fails(Bright):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.mean() < 0.37:
                raise ValueError("too dark")
            return super().forward(x)

    run = certify(tmp_path / "run", 0.01, model=Fails())
    assert len(run.failures()) == 1
    out = write(run, tmp_path / "rows.json")
    jsonschema.validate(json.loads(out.read_text()), schema())
    assert digest_run(open_run(out)) == digest_run(run)


def test_the_digest_names_what_is_claimed(tmp_path: Path) -> None:
    run = certify(tmp_path / "a")
    digest = digest_run(run)
    assert digest == digest_run(certify(tmp_path / "b"))  # elsewhere, and not in the same time
    assert digest != digest_run(certify(tmp_path / "c", 0.25))
    assert digest != digest_run(certify(tmp_path / "d", images=[0, 1, 2]))


def test_a_folder_is_a_leaderboard(tmp_path: Path) -> None:
    board = tmp_path / "board"
    write(certify(tmp_path / "one"), board / "b.json")
    write(certify(tmp_path / "two", 0.25), board / "a.tsv")
    certify(board / "c", 0.3)
    (board / "README.md").write_text("ours")
    (board / ".hidden.json").write_text("{")
    assert list_runs(board) == [str(board / name) for name in ("a.tsv", "b.json", "c")]
    report = write_report([board], tmp_path / "report.json")
    assert len(report.summaries) == 3
    output = pprs("report", board, "--out", tmp_path / "cli.json", "--radii", "0")
    assert "wrote" in output.stdout + output.stderr
    methods = json.loads((tmp_path / "cli.json").read_text())["methods"]
    assert len(methods) == 3
    assert methods[0]["images"] == 4


def test_a_folder_without_results_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert list_runs(tmp_path / "empty") == [str(tmp_path / "empty")]
    assert "is not a run" in pprs("report", tmp_path / "empty", code=2).stderr
    assert list_runs("s3://bucket/run") == ["s3://bucket/run"]

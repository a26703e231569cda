"""What `pprs demo` shows, with fewer images than it has."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import pprs

from pprs import open_run
from pprs.cli import demos
from pprs.model.weights import read_description


def test_the_demo_certifies_at_once_and_writes_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demos.CertifyDemo, "limit", 3)
    monkeypatch.setattr(demos.CertifyDemo, "n", 100)
    monkeypatch.setattr(demos.CertifyDemo, "ways", {"rs": "none", "blur": "blur:size=3"})
    out = pprs("demo", "--out", tmp_path / "demo").stdout
    assert "can alter this label" in out or "abstained" in out  # the first digit, before the rest
    for name in ("rs", "blur"):
        run = open_run(tmp_path / "demo" / name)
        assert (len(run), run.settings.model) == (3, "builtin:digits")
    assert (tmp_path / "demo" / "report.html").is_file()
    assert not list(tmp_path.rglob("*.safetensors"))


def test_with_train_it_trains_by_the_command_of_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = "pprs train --data builtin:mnist5k --width 1 --epochs 1 --batch-size 1000 --threads 1 --out other"
    monkeypatch.setitem(demos.COMMANDS, "digits", command)
    models = []
    monkeypatch.setattr(demos.SetsDemo, "present", lambda self, model, out, page, *, adapting: models.append(model))
    for _ in range(2):  # the second time it is there
        pprs("demo", "--sets", "--train", "--out", tmp_path)
    assert models == [str(tmp_path / "trained" / "digits.safetensors")] * 2
    assert read_description(Path(models[0]))["training"]["batch_size"] == 1000


def test_it_shows_one_thing_at_a_time(tmp_path: Path) -> None:
    assert "give one of --patch, --segment and --sets" in pprs("demo", "--patch", "--sets", code=2).stderr

"""The documentation: links resolve, lines wrap, the tutorial runs, and the site builds without a warning."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import pprs

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
# Written by `pprs reproduce`, one line per paragraph.
GENERATED = DOCS / "results"
WIDTH, PRINTED_WIDTH = 100, 120

FENCE = re.compile(
    r"^(?P<indent> *)(?P<ticks>```+) *(?P<info>[^\n`]*)\n(?P<code>.*?)^(?P=indent)(?P=ticks) *$", re.M | re.S
)
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)|<(?:img|a)\b[^>]*?\b(?:src|href)=\"([^\"]+)\"")
HEADING = re.compile(r"^#{1,6} +(.*?)(?: *#+)?$", re.M)


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))


def anchors(page: Path) -> set[str]:
    """The ids of a page's headings, as GitHub and the site derive them."""
    found: set[str] = set()
    for title in HEADING.findall(FENCE.sub("", page.read_text())):
        title = re.sub(r"!?\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", title)
        slug = re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")
        count = sum(1 for other in found if re.fullmatch(re.escape(slug) + r"(-\d+)?", other))
        found.add(slug if slug not in found else f"{slug}-{count}")
    return found


def relative_links(page: Path) -> Iterator[tuple[str, str]]:
    for link in (first or second for first, second in LINK.findall(without_code(page.read_text()))):
        if not re.match(r"[a-z][a-z+.-]*:", link):
            target, _, anchor = link.partition("#")
            yield target, anchor


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_and_anchors_resolve(page: Path) -> None:
    for target, anchor in relative_links(page):
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), f"{page.name} links to {target}, which does not exist"
        assert file.is_relative_to(ROOT), f"{page.name} links to {target}, which is outside the repository"
        if anchor:
            assert anchor in anchors(file), f"{page.name}: {file.name} has no heading #{anchor}"


def test_pages_of_the_site_link_only_to_the_site() -> None:
    for page in DOCS.rglob("*.md"):
        for target, _ in relative_links(page):
            assert (page.parent / target).resolve().is_relative_to(DOCS), f"{page.name} links to {target}"


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if not page.is_relative_to(GENERATED)],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_lines_are_at_most_100_columns(page: Path) -> None:
    text = FENCE.sub(lambda match: "\n" * match[0].count("\n"), page.read_text())
    for number, line in enumerate(text.splitlines(), 1):
        # A table's row cannot be wrapped, nor can an image or what is indented as code.
        if line.startswith(("|", "    ", "![")) or re.search(r"https?://", line):
            continue
        assert len(line) <= WIDTH, f"{page.name}:{number} has {len(line)} columns"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_printed_text_is_at_most_120_columns(page: Path) -> None:
    for language, _, text in blocks(page):
        if language == "text":
            longest = max(text.splitlines(), key=len)
            assert len(longest) <= PRINTED_WIDTH, f"{page.name}: {longest}"


def blocks(page: Path) -> Iterator[tuple[str, str, str]]:
    """Language, file name (if the block is a file) and text of every fenced block."""
    for match in FENCE.finditer(page.read_text()):
        language, _, options = match["info"].strip().partition(" ")
        title = re.search(r'title="([^"]+)"', options)
        yield language, title[1] if title else "", match["code"]


# Importing torch takes longer than most blocks, so one process imports it and every block runs in a fork of its own.
RUN_BLOCKS = """
import json, os, shlex, sys, traceback
import datasets, matplotlib.pyplot, torch
import pprs, pprs.cli, pprs.training.trainer
for name in dir(pprs):
    getattr(pprs, name)

def run(language, code):
    sys.path.insert(0, os.getcwd())
    if language == "python":
        exec(compile(code, "tutorial", "exec"), {"__name__": "__main__"})
    else:
        program, *sys.argv[1:] = shlex.split(code)
        assert program == "pprs", program
        pprs.cli.main()

def run_in_child(step):
    print("$", step[1], flush=True)
    if (child := os.fork()) == 0:
        status = 0
        try:
            run(*step)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
            status = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

for step in json.loads(sys.argv[1]):
    if status := run_in_child(step):
        sys.exit(status)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_block_of_the_tutorial_runs_in_an_empty_folder(tmp_path: Path) -> None:
    folder, steps, languages = tmp_path / "empty", list[tuple[str, str]](), set[str]()
    folder.mkdir()
    for language, title, code in blocks(DOCS / "tutorial.md"):
        languages.add(language)
        if title:
            (folder / title).write_text(code)
        elif language == "python":
            steps.append((language, code))
        elif language == "bash":
            steps += [(language, command) for command in code.replace("\\\n", " ").splitlines() if command.strip()]
    assert languages == {"bash", "python", "text"}
    assert len(steps) == 9
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", RUN_BLOCKS, json.dumps(steps)], cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": path, "PPRS_CACHE": str(tmp_path / "cache")},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for made in ("digits.safetensors", "show.png", "report.html", "mine.npz", "runs/mine/run.sqlite"):
        assert (folder / made).is_file(), made


def test_the_python_of_the_readme_runs_as_it_stands() -> None:
    (code,) = [text for language, _, text in blocks(ROOT / "README.md") if language == "python"]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("class 9: no change of L2 norm up to 0.")


def test_the_doctor_says_what_the_page_of_questions_shows(tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests/golden/identity/digits.safetensors", tmp_path / "M.safetensors")
    (_, _, commands), (_, _, shown) = list(blocks(DOCS / "questions.md"))[:2]
    certify, doctor = (shlex.split(line)[1:] for line in commands.splitlines())
    pprs(*certify, cwd=tmp_path)
    printed = pprs(*doctor, cwd=tmp_path).stdout.splitlines()
    untimed = [line for line in shown.splitlines() if "samples, about" not in line]
    assert len(untimed) >= 7
    assert [line for line in untimed if line not in printed] == []


def write_examples(folder: Path) -> None:
    """Write the files that the page on extending shows."""
    files = {title: code for _, title, code in blocks(DOCS / "extending.md") if title}
    assert set(files) == {"stripes.py", "test_stripes.py", "shifts.py", "test_shifts.py"}
    for name, code in files.items():
        (folder / name).write_text(code)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["test_stripes.py", "test_shifts.py"])
def test_the_examples_of_extensions_satisfy_their_contracts(name: str, tmp_path: Path) -> None:
    write_examples(tmp_path)
    path = os.pathsep.join([str(ROOT / "src"), str(tmp_path), os.environ.get("PYTHONPATH", "")])
    call = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", name]
    done = subprocess.run(
        call, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_guarantee_on_the_page_is_that_of_the_examples() -> None:
    """The page shows the example without its opening, its imports of other modules, and its last function."""
    (shown,) = [code for _, title, code in blocks(DOCS / "extending.md") if title == "shifts.py"]
    example = (ROOT / "examples" / "shifts.py").read_text()
    assert example.partition("\ndef main()")[0].partition('"""\n\n')[2].rstrip() == shown.rstrip()
    assert len(example.splitlines()) < 150


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_calls_of_an_own_guarantee_print_what_the_page_shows(tmp_path: Path) -> None:
    write_examples(tmp_path)
    shutil.copy(ROOT / "tests/golden/identity/digits.safetensors", tmp_path / "digits.safetensors")
    page = list(blocks(DOCS / "extending.md"))
    start = next(i for i, (_, title, _) in enumerate(page) if title == "test_shifts.py") + 1
    (call, printed), (commands, shown) = [((page[i][2]), page[i + 1][2]) for i in (start, start + 2)]
    (tmp_path / "call.py").write_text(call)
    path = os.pathsep.join([str(ROOT / "src"), str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "PPRS_CACHE": str(tmp_path / "cache"), "COLUMNS": "100"}
    outputs = []
    for lines in ([["call.py"]], [["-m", *shlex.split(line)] for line in commands.splitlines()]):
        output = ""
        for arguments in lines:
            done = subprocess.run(
                [sys.executable, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stdout + done.stderr
            output += done.stdout
        outputs.append(output)
    for output, expected in zip(outputs, (printed, shown), strict=True):
        lines = [line.rstrip() for line in output.splitlines()]
        missing = [line for line in expected.splitlines() if line.rstrip() not in lines and "--seed" not in line]
        assert missing == [], output


def run_mkdocs(site: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    call = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)]
    return subprocess.run(call, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_site_builds_strictly_and_fetches_nothing(tmp_path: Path) -> None:
    for module in ("mkdocs", "material", "mkdocstrings", "latex2mathml"):
        if importlib.util.find_spec(module) is None:
            pytest.skip("the docs extra is not installed")
    done = run_mkdocs(tmp_path / "site")
    assert done.returncode == 0, done.stdout + done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 20
    fetched = re.compile(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"?https?:|<link\b[^>]*\bhref=\"?https?:", re.I)
    for page in pages:
        text = page.read_text()
        elsewhere = [m[0] for m in fetched.finditer(text) if 'rel="canonical"' not in m[0]]
        assert not elsewhere, f"{page.name}: {elsewhere}"
        assert 'class="arithmatex"' not in text, f"{page.name} has a formula that was not converted"
    assert "<math" in (tmp_path / "site" / "theory.html").read_text()
    reference = "".join(page.read_text() for page in (tmp_path / "site" / "api").glob("*.html"))
    public = re.findall(r"^from \.[\w.]+ import \w+ as (\w+)$", (ROOT / "src/pprs/__init__.pyi").read_text(), re.M)
    assert len(public) > 20
    missing = [name for name in public if f'id="pprs.{name}"' not in reference]
    assert not missing, f"not in the API reference: {missing}"


def test_make_docs_without_the_extra_says_how_to_install_it(tmp_path: Path) -> None:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    # A Python that finds no installed packages.
    (venv / "bin" / "python").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -I -S "$@"\n')
    (venv / "bin" / "python").chmod(0o755)
    for stamp in (".demo", ".ready"):  # in the order in which they are made
        (venv / stamp).touch()
    call = ["make", "docs", f"VENV={venv}"]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "pip install --constraint constraints.txt --editable '.[docs]'" in done.stdout + done.stderr

"""The package as a whole: its types, its example, its book chapter."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
EXAMPLE = HERE.parent / "examples" / "parameter_server.py"
README = HERE.parent / "README.md"
CHAPTER = HERE.parents[2] / "docs" / "book" / "src" / "python.md"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=120)


def test_the_types_are_those_of_the_module() -> None:
    checked = run("-m", "mypy.stubtest", "adverb._adverb", "--allowlist", str(HERE / "stubtest.txt"))
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_sources_and_the_example_have_types() -> None:
    package = HERE.parent / "python" / "adverb"
    checked = run("-m", "mypy", "--strict", str(package), str(EXAMPLE))
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_example_finds_the_line() -> None:
    ended = run(str(EXAMPLE), "3")
    # How far the workers' parameters lag behind decides the last digits.
    assert ended.returncode == 0 and ended.stdout.startswith("parameters: ["), ended
    found = [float(word) for word in ended.stdout.split("[")[1].strip("]\n").split()]
    assert found == pytest.approx([3, 1], abs=0.01)


LISTINGS = [
    listing
    for page in (README, CHAPTER)
    for listing in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
]


def test_the_chapter_shows_the_example() -> None:
    assert EXAMPLE.read_text() in LISTINGS


@pytest.mark.parametrize("listing", LISTINGS)
def test_listings_of_the_pages_run(listing: str, tmp_path: Path) -> None:
    program = tmp_path / "listing.py"
    program.write_text(listing)
    ended = run(str(program))
    assert ended.returncode == 0, ended.stderr

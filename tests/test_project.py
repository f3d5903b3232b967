"""What the repository promises about itself: its lock, its layout, its generated pages."""

from __future__ import annotations

import ast
import re
import runpy
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
ROOMS = ("audit", "collectors", "dashboards", "gpu_tracer")
LOCK = (ROOT / "requirements.lock").read_text()
PINS = re.findall(r"^([A-Za-z0-9_.-]+)==([^ ;\\]+)", LOCK, re.MULTILINE)


def declared() -> list[str]:
    """Requirements of the package itself and of its development, as declared."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *extras["dev"]]
    for line in [line for line in lines if Requirement(line).name == project["name"]]:
        lines.remove(line)  # what it stands for: extras of its own
        lines += [each for extra in sorted(Requirement(line).extras) for each in extras[extra]]
    return lines


@pytest.mark.parametrize("line", declared())
def test_lock_pins_what_is_declared(line: str) -> None:
    requirement = Requirement(line)
    pinned = [v for name, v in PINS if canonicalize_name(name) == canonicalize_name(requirement.name)]
    assert pinned, f"{requirement.name} is not locked; CONTRIBUTING.md says how to renew the lock"
    assert all(requirement.specifier.contains(version) for version in pinned)


def test_lock_has_hashes_and_names_no_host() -> None:
    entries = re.split(r"\n(?=\S)", LOCK.strip())
    assert [entry for entry in entries if "--hash=sha256:" not in entry] == []
    assert "://" not in LOCK
    assert "index" not in LOCK


def test_rooms_are_reached_through_the_package() -> None:
    for room in ROOMS:
        link = ROOT / "kvwitness" / room
        # In an unpacked source distribution the rooms are real folders.
        assert link.is_dir()
        assert not link.is_symlink() or link.resolve() == (ROOT / room).resolve()


def imported(path: Path) -> set[str]:
    """Top-level names that a file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add((node.module or "").split(".")[0])
    return names


def test_nothing_imports_a_room_by_its_bare_name() -> None:
    folders = [*ROOMS, "tests", "benchmarks", "docs"]
    files = [file for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))]
    assert files
    assert [str(f.relative_to(ROOT)) for f in files if imported(f) & set(ROOMS)] == []


def test_generated_pages_are_fresh() -> None:
    assert runpy.run_path(str(ROOT / "docs" / "generate.py"))["stale"]() == []

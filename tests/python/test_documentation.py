"""The checks of documentation in `make check` find each kind of mistake, and accept correct text."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def checker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    checker = script("check_docs")
    monkeypatch.setattr(checker, "ROOT", tmp_path)
    monkeypatch.setattr(checker, "DOCS", tmp_path / "docs")
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("# Outside\n")
    (tmp_path / "docs" / "other.md").write_text(
        "# Other\n\n## `[[device]]`, and more\n\n```\n## no heading\n```\n\n## Twice\n\n## Twice\n"
    )
    return checker


@pytest.mark.parametrize(
    "link",
    ["other.md", "other.md#device-and-more", "other.md#twice-1", "#here", "https://example.org/#x", "./other.md"],
)
def test_links_that_lead_somewhere(checker: ModuleType, link: str) -> None:
    page = checker.DOCS / "page.md"
    page.write_text(f"# Here\n\n[text]({link}) and `[code](nowhere.md)`\n")
    assert list(checker.check(page)) == []


@pytest.mark.parametrize(
    ("link", "reason"),
    [
        ("missing.md", "no such file"),
        ("other.md#no-heading", "no such heading"),
        ("#nowhere", "no such heading"),
        ("../README.md", "leads out of docs/"),
        ("rust/uniference_nothing/index.html", "no such crate"),
    ],
)
def test_links_that_lead_nowhere(checker: ModuleType, link: str, reason: str) -> None:
    page = checker.DOCS / "page.md"
    page.write_text(f"# Here\n\n[text]({link})\n")
    (complaint,) = checker.check(page)
    assert complaint.startswith(f"docs/page.md:3: {link}: {reason}")


def test_long_lines_are_found_outside_of_tables_and_code(checker: ModuleType) -> None:
    page = checker.DOCS / "page.md"
    long = "x" * 121
    page.write_text(f"# Here\n\n{long}\n\n| {long} |\n\n```\n{long}\n```\n")
    assert list(checker.check(page)) == ["docs/page.md:3: 121 columns, 120 are allowed"]


def test_files_that_are_named_exist(checker: ModuleType) -> None:
    page = checker.DOCS / "page.md"
    page.write_text("# Here\n\n`docs/other.md`, `docs/*.md`, `docs/gone.md` and `crates/gone/*.toml`\n")
    assert list(checker.check(page)) == [
        "docs/page.md:3: `docs/gone.md`: no such file",
        "docs/page.md:3: `crates/gone/*.toml`: no such file",
    ]


def test_dead_links_of_a_built_site(checker: ModuleType, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "a.html").write_text('<h1 id="x"></h1><a href="b.html#y"></a><a href="b.html#z"></a><img src="c.svg">')
    (site / "b.html").write_text('<p id="y"></p>')
    assert list(checker.check_site(site)) == ["a.html: b.html#z: no such anchor", "a.html: c.svg: no such file"]


def test_the_api_page_is_up_to_date_and_has_every_public_name() -> None:
    api = script("python_api")
    page = api.PAGE.read_text()
    assert api.page() == page
    for module in api.MODULES:
        for name in api.exported(api.parse(module)):
            assert f"### {name}\n" in page

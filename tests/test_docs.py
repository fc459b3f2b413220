"""The documentation's commands print what the pages show, and its links lead somewhere."""

import re

import doc_pages
import pytest

NAMES = [str(page.relative_to(doc_pages.ROOT)) for page in doc_pages.pages()]
# Pages that are linked before they are written.
_TO_COME: set[str] = set()
_LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]*))?\)")


@pytest.mark.parametrize("name", NAMES)
def test_commands_print_what_the_page_shows(name, tmp_path):
    pytest.importorskip("torch")
    for command, shown, real in doc_pages.run_page(doc_pages.ROOT / name, tmp_path):
        assert doc_pages.matches(shown, real), f"$ {command}\n{real}\n-- the page shows\n{shown}"


def all_pages():
    top = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md"]
    return [*(doc_pages.ROOT / name for name in top), *doc_pages.ROOT.glob("docs/**/*.md")]


@pytest.mark.parametrize("page", all_pages(), ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for path, part in _LINK.findall(page.read_text(encoding="utf-8")):
        target = (page.parent / path).resolve() if path else page
        if target.name in _TO_COME and not target.exists():
            continue
        assert target.exists(), f"{page.name}: {path}"
        if part:
            assert part in anchors(target), f"{page.name}: {path}#{part}"


def anchors(page):
    """GitHub's names of the headings of a page."""
    heads = re.findall(r"(?m)^#+ (.*)$", page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_an_output_may_leave_out_lines_and_parts_of_lines():
    assert doc_pages.matches("a\n...\nloss ... b\n", "a\nx\ny\nloss 0.5 b  \n")
    assert doc_pages.matches("...\nend", "end\n")
    assert not doc_pages.matches("a\nb", "a\nc")
    assert not doc_pages.matches("a\n...\nb", "a\nc")

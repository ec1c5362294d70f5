"""The code blocks of README.md and docs/ run as they stand.

The ```` ```python ```` blocks of one page run in order, in one namespace and an empty folder. A block
that must not run says why, in its fence or in a comment on the line before it, which no reader sees::

    ```python no-run: needs a GPU          <!-- no-run: needs a GPU -->
                                           ```python

A statement that is there to fail says so with ``# raises ValueError: part of the message`` on one of its
lines; such a comment on a line of its own speaks of the block's last statement.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import textwrap
import tokenize
import types
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

ROOT = Path(__file__).parents[1]

_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})\s*(?P<info>.*?)\s*$")
_SKIP_COMMENT = re.compile(r"^\s*<!--\s*no-run\b\s*:?\s*(?P<reason>.*?)\s*-->\s*$")
_SKIP_INFO = re.compile(r"\bno-run\b\s*:?\s*(?P<reason>.*)$")
_RAISES = re.compile(r"^#\s*raises\s+(?P<kind>[\w.]+)\s*(?::\s*(?P<text>.*?))?\s*$")


@attrs.frozen(kw_only=True)
class Block:
    """A fenced Python block: its code, where it begins, and why it is not run (None if it is)."""

    code: str
    first_line: int
    skip_reason: str | None = None


def _blocks(text: str) -> Iterator[Block]:
    """Yield the Python blocks of a Markdown text."""
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        opening = _FENCE.match(lines[number])
        number += 1
        if opening is None:
            continue
        start = number
        while number < len(lines) and not _closes(lines[number], opening["fence"]):
            number += 1
        if number == len(lines):
            raise ValueError(f"line {start}: this code block is never closed")
        language, _, info = opening["info"].partition(" ")
        if language in ("python", "py", "python3"):
            above = lines[start - 2] if start > 1 else ""
            skip = _SKIP_INFO.search(info) or _SKIP_COMMENT.match(above)
            if skip is not None and not skip["reason"]:
                raise ValueError(f"line {start}: a block that is not run says why: no-run: <reason>")
            code = textwrap.dedent("\n".join(lines[start:number]) + "\n")
            yield Block(code=code, first_line=start + 1, skip_reason=skip and skip["reason"])
        number += 1


def _closes(line: str, fence: str) -> bool:
    """Say whether a line ends the block that a fence began."""
    line = line.strip()
    return len(line) >= len(fence) and set(line) == {fence[0]}


def _expectations(block: Block, statements: list[ast.stmt]) -> dict[int, tuple[str, str, int]]:
    """Map the index of each statement that must fail to (exception, part of its message, line)."""
    expected: dict[int, tuple[str, str, int]] = {}
    for token in tokenize.generate_tokens(io.StringIO(block.code).readline):
        match = _RAISES.match(token.string) if token.type == tokenize.COMMENT else None
        if match is None:
            continue
        line = token.start[0]
        alone = not token.line[: token.start[1]].strip()
        at = [i for i, s in enumerate(statements) if s.lineno <= line <= (s.end_lineno or s.lineno)]
        index = at[-1] if at and not alone else len(statements) - 1
        where = block.first_line + line - 1
        if index in expected:
            raise ValueError(f"line {where}: a second '# raises' for one statement")
        expected[index] = (match["kind"], match["text"] or "", where)
    return expected


def _run(block: Block, filename: str, namespace: dict) -> None:
    """Run one block in a namespace, statement by statement, with tracebacks that point to the page."""
    statements = ast.parse(block.code, filename).body
    expected = _expectations(block, statements)
    for index, statement in enumerate(statements):
        module = ast.increment_lineno(ast.Module(body=[statement], type_ignores=[]), block.first_line - 1)
        # Nothing of this file's own __future__ imports is to be passed on.
        code = compile(module, filename, "exec", dont_inherit=True)
        if index not in expected:
            exec(code, namespace)
            continue
        kind, text, line = expected[index]
        try:
            exec(code, namespace)
        except Exception as error:
            kinds = [c.__name__ for c in type(error).__mro__]
            if kind.rpartition(".")[2] not in kinds or text not in str(error):
                raise AssertionError(
                    f"{filename}:{line} promises {kind}: {text}\ngot {kinds[0]}: {error}"
                ) from error
        else:
            raise AssertionError(f"{filename}:{line} promises {kind}, but nothing was raised")


def run_page(text: str, filename: str, name: str) -> list[Block]:
    """Run the Python blocks of a Markdown page in order and return those that ran.

    Parameters
    ----------
    text : str
        The page.
    filename : str
        What tracebacks call it.
    name : str
        The module that the page's classes and functions belong to, for the time of the run.
    """
    module = types.ModuleType(name)
    sys.modules[name] = module  # so that what the page defines can be pickled
    try:
        ran = [block for block in _blocks(text) if block.skip_reason is None]
        for block in ran:
            _run(block, filename, module.__dict__)
    finally:
        del sys.modules[name]
    return ran


def _pages() -> list:
    """Give one test parameter for each page that has Python blocks."""
    paths = [path for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if path.is_file()]
    return [
        pytest.param(path, id=path.relative_to(ROOT).as_posix())
        for path in paths
        if re.search(r"^ *(`{3,}|~{3,})\s*py", path.read_text("utf-8"), re.MULTILINE)
    ]


@pytest.mark.usefixtures("config_restored")
@pytest.mark.parametrize("path", _pages())
def test_the_code_blocks_of_a_page_run_in_order(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page(path.read_text("utf-8"), str(path), "page_" + re.sub(r"\W", "_", path.stem))


def _page(*lines: str) -> str:
    return "\n".join(lines) + "\n"


def test_blocks_of_a_page_share_one_namespace_and_other_languages_are_left_alone():
    text = _page(
        "```python", "x = 1", "```", "", "```bash", "exit 1", "```", "", "```python", "assert x == 1", "```"
    )
    assert [block.first_line for block in run_page(text, "page.md", "page")] == [2, 10]


def test_a_traceback_points_to_the_line_of_the_page():
    text = _page("Words.", "", "```python", "x = 1", "x / 0", "```")
    with pytest.raises(ZeroDivisionError) as caught:
        run_page(text, "page.md", "page")
    last = caught.traceback[-1]
    assert (str(last.frame.code.raw.co_filename), last.lineno + 1) == ("page.md", 5)


def test_indented_blocks_and_longer_fences_are_read():
    text = _page("- an item", "", "  ~~~~python", "  y = 2", "  ~~~", "  ~~~~").replace(
        "  ~~~\n", "  # ~~~\n"
    )
    assert [block.code for block in run_page(text, "page.md", "page")] == ["y = 2\n# ~~~\n"]


@pytest.mark.parametrize(
    "lines",
    [
        ("```python no-run: needs a GPU", "1 / 0", "```"),
        ("<!-- no-run: needs a GPU -->", "```python", "1 / 0", "```"),
    ],
    ids=["fence", "comment"],
)
def test_a_block_that_says_why_is_not_run(lines):
    assert run_page(_page(*lines), "page.md", "page") == []
    assert [block.skip_reason for block in _blocks(_page(*lines))] == ["needs a GPU"]


@pytest.mark.parametrize("lines", [("```python no-run", "```"), ("<!-- no-run -->", "```python", "```")])
def test_a_block_that_is_not_run_must_say_why(lines):
    with pytest.raises(ValueError, match="a block that is not run says why"):
        run_page(_page(*lines), "page.md", "page")


def test_a_block_that_is_never_closed_is_an_error():
    with pytest.raises(ValueError, match="line 3: this code block is never closed"):
        run_page(_page("", "", "```python", "x = 1"), "page.md", "page")


def test_promised_errors_are_caught_and_the_page_goes_on():
    text = _page(
        "```python",
        "int('a')  # raises ValueError: invalid literal",
        "{}[",
        "    'b'  # raises LookupError",
        "]",
        "done = True",
        "# raises ZeroDivisionError: division",
        "1 / 0",
        "```",
        "```python",
        "assert done",
        "```",
    )
    assert len(run_page(text, "page.md", "page")) == 2


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("1 + 1  # raises ValueError: oh", "page.md:2 promises ValueError, but nothing was raised"),
        ("int('a')  # raises TypeError: invalid", "promises TypeError: invalid\ngot ValueError: invalid"),
        ("int('a')  # raises ValueError: oh", "promises ValueError: oh\ngot ValueError: invalid"),
    ],
)
def test_a_promised_error_that_does_not_come_fails_the_page(statement, message):
    with pytest.raises(AssertionError, match=re.escape(message)):
        run_page(_page("```python", statement, "```"), "page.md", "page")


def test_one_statement_makes_one_promise():
    text = _page("```python", "# raises ValueError: a", "int('a')  # raises ValueError: a", "```")
    with pytest.raises(ValueError, match="line 3: a second '# raises' for one statement"):
        run_page(text, "page.md", "page")

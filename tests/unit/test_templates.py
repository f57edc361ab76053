"""Chat templates in a process of their own: what they may take, and how they may end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jinja2")

from interlace.core.errors import ModelFileError
from interlace.models import templates
from interlace.models.chat import render_chat_prompt
from interlace.models.templates import Limits, TemplateError, render

MEMORY = "it takes more than 512 MiB of memory"
CPU = "it takes more than 1 s of CPU time"


def test_a_template_writes_what_it_is_given_whatever_that_holds() -> None:
    text = 'é"\n\x00\udcff' + "x" * 500_000  # more than a pipe holds
    assert render("{{ text }}{{ numbers | sum }}", {"text": text, "numbers": [1, 2]}) == text + "3"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ 'a' * 3000000000 }}", MEMORY),
        ("{{ ('a' * 3000000000) | length }}", MEMORY),
        ("{{ [1] * 10 ** 9 }}", MEMORY),
        ("{{ 'a'.center(3000000000) }}", MEMORY),
        ("{{ 'a' | center(3000000000) }}", MEMORY),
        ("{{ '%999999999d' % 1 }}", MEMORY),
        ("{{ '{:>3000000000}'.format(1) }}", MEMORY),
        ("{{ 'a\nb' | indent(10 ** 9) }}", MEMORY),
        ("{{ [1] | tojson(indent=10 ** 10) }}", MEMORY),
        ("{{ range(100000) | list | join('a' * 1000000) | length }}", MEMORY),
        ("{% set n = namespace(x='a') %}{% for _ in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}", MEMORY),
        ("{% for _ in range(99999) %}{% for _ in range(99999) %}{% endfor %}{% endfor %}", CPU),
        ("{{ 9 ** 99999999 }}", CPU),
        ("{{ 'a' * 1048577 }}", "it writes more than 1048576 characters"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}", "RecursionError"),
        ("{{ " + "1 + " * 5_000 + "1 }}", "RecursionError"),
        ("{% if 1 %}" * 2_000 + "{% endif %}" * 2_000, "RecursionError"),
        ("{% set n = namespace() %}{% set n.__class__ = 1 %}", "SecurityError: a namespace has no '__class__'"),
        ("{{ raise_exception('a\\x1b[2Jb\\n' * 9000) }}", r"ValueError: a \[2Jb"),
    ],
    ids=lambda text: text[:40],
)
def test_a_template_that_takes_too_much_is_one_line(template: str, message: str) -> None:
    with pytest.raises(TemplateError, match=message) as failed:
        render(template, {}, Limits(cpu_s=1) if message == CPU else Limits())
    assert str(failed.value).isprintable()
    assert len(str(failed.value)) < 400


def test_the_error_names_the_model_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ 'a' * 3000000000 }}")
    with pytest.raises(ModelFileError, match=f"the chat template of {tmp_path.name!r} fails .{MEMORY}.; change the"):
        render_chat_prompt(tmp_path, None, "hello")


def test_a_process_that_writes_no_answer_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program.py"
    monkeypatch.setattr(templates, "_PROGRAM", program)
    ends = {
        "import os; os.kill(os.getpid(), 11)": "its process ended with signal SIGSEGV",
        "raise SystemExit(3)": "its process ended with status 3",
        "print('{')": "its process ended with status 0",
    }
    for text, message in ends.items():
        program.write_text(text)
        with pytest.raises(TemplateError, match=message):
            render("x", {})


def test_a_process_that_never_ends_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program.py"
    monkeypatch.setattr(templates, "_PROGRAM", program)
    program.write_text(
        f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(999)"
    )
    with pytest.raises(TemplateError, match=r"it takes more than 0\.5 s"):
        render("x" * 1_000_000, {}, Limits(wall_s=0.5))
    if (tmp_path / "pid").is_file():
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.mark.skipif(shutil.which("ps") is None, reason="no ps")
def test_memory_is_watched_where_the_system_limits_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program.py"
    monkeypatch.setattr(templates, "_PROGRAM", program)
    program.write_text("import time; taken = b'a' * (200 << 20); time.sleep(999)")
    with pytest.raises(TemplateError, match="it takes more than 100 MiB of memory"):
        render("x", {}, Limits(memory_bytes=100 << 20, watches_memory=True))


def test_without_an_interpreter_or_jinja2_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "find_spec", lambda name: None)
    with pytest.raises(ModelFileError, match=r"chat templates need jinja2.*pip install -e '\.\[generate\]'"):
        render("x", {})
    monkeypatch.undo()
    for absent in ("/nowhere/python", None, ""):
        monkeypatch.setattr(sys, "executable", absent)
        with pytest.raises(ModelFileError, match="a chat template needs a process of its own, and none can be started"):
            render("x", {})


def test_the_process_imports_neither_interlace_nor_what_the_parent_has(tmp_path: Path) -> None:
    """The folder that it starts in, and PYTHONPATH, have modules of the names that it needs."""
    for name in ("json", "jinja2", "folder"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(9)")
    code = "from interlace.models.templates import render; print(render('{{ 1 + 1 }}', {}))"
    where = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    code = f"import os; os.chdir({str(tmp_path)!r}); os.environ['PYTHONPATH'] = {str(tmp_path)!r}; {code}"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, env=where, check=False)
    assert done.stdout == "2\n", done.stderr

"""Every example of README.md and docs/*.md, run as it stands there, by its page, in its order.

A page's blocks share a folder: `model` is a checkpoint of four tensors, `shards` the same in two files with an index,
`new` differs from it in one byte, `cut.safetensors` is cut off. By language of the block:

sh      run by bash, the command under test in PATH. A line that begins with "$ " is a command and what follows is what
        it prints, where "..." stands for anything; without such lines all lines are commands, and each must succeed.
        `make` and `pip` are played: the one says what it would do, the other is known to be done.
c       the blocks of a page are one program, which is run on `model`; the text block behind it is its output.
python  executed in one namespace. Blocks with torch, transformers or jax are skipped where these are not installed.

A text block elsewhere is only text, and so is an indented one.
"""

import contextlib
import io
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import conftest
import numpy
import pytest
import reference

PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (conftest.ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LANGUAGES = {"sh", "c", "python", "text"}
MARK = "@@@ command"
# What a block names, and what must be installed for it.
NEEDS = {"torch": "torch", "transformers": "transformers", "jax": "jax", "fastsafetensors": "torch"}
MAKE = '#!/bin/sh\nexec /usr/bin/make --dry-run -C "$ROOT" "$@" >/dev/null\n'
PIP = '#!/bin/sh\ntest "$*" = "install ." && test -f "$ROOT/pyproject.toml"\n'


def all_blocks(page: str) -> list[tuple[str, str]]:
    found = BLOCK.findall((conftest.ROOT / page).read_text())
    assert {language for language, _ in found} <= LANGUAGES, page
    return found


def blocks_of(page: str, language: str) -> list[str]:
    return [text for name, text in all_blocks(page) if name == language]


def pages_with(language: str) -> list[str]:
    return [page for page in PAGES if blocks_of(page, language)]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The working folder of the examples, without HEADRACE_* of the caller."""
    shapes = {"lm_head.weight": [16, 8], "layers.0.q.weight": [8, 8], "layers.1.q.weight": [8, 8], "layers.1.bias": [8]}
    tensors, first = {}, 0
    for name, shape in shapes.items():
        count = int(numpy.prod(shape))
        tensors[name] = ("F32", shape, numpy.arange(first, first + count, dtype="<f4").tobytes())
        first += count
    for name in ("model", "new", "shards"):
        (tmp_path / name).mkdir()
    whole = reference.write_by_hand(tmp_path / "model" / "model.safetensors", tensors, metadata={"format": "pt"})
    changed = bytearray(whole.read_bytes())
    changed[-1] ^= 1
    (tmp_path / "new" / "model.safetensors").write_bytes(changed)
    (tmp_path / "cut.safetensors").write_bytes(changed[:900])
    write_shards(tmp_path / "shards", tensors)
    for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_shards(folder: Path, tensors: dict[str, reference.Tensor]) -> None:
    halves = [dict(list(tensors.items())[:1]), dict(list(tensors.items())[1:])]
    weight_map = {}
    for number, half in enumerate(halves, 1):
        name = f"model-{number:05}-of-00002.safetensors"
        reference.write_by_hand(folder / name, half)
        weight_map |= dict.fromkeys(half, name)
    index = {"metadata": {"total_size": sum(len(data) for _, _, data in tensors.values())}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


# -------------------------------------------------------------------------------------------------------------- sh


@pytest.fixture
def environment(folder, root, build) -> dict[str, str]:
    bin_folder = folder / ".bin"
    bin_folder.mkdir()
    for name, text in {"make": MAKE, "pip": PIP}.items():
        (bin_folder / name).write_text(text)
        (bin_folder / name).chmod(0o755)
    path = f"{bin_folder}:{build}:{os.environ['PATH']}"
    return os.environ | {"PATH": path, "ROOT": str(root), "BUILD": str(build), "LC_ALL": "C.UTF-8",
                         "XDG_CACHE_HOME": str(folder / ".cache"), "CUDA_VISIBLE_DEVICES": ""}


def commands_of(block: str) -> list[tuple[str, str | None]]:
    """(command, what it prints or None where that is not shown)."""
    if not re.search(r"^\$ ", block, re.MULTILINE):
        joined = block.replace("\\\n", " ")
        return [(line, None) for line in joined.splitlines() if line.strip() and not line.startswith("#")]
    parts = re.split(r"^\$ ", block, flags=re.MULTILINE)
    assert not parts[0], "output without a command"
    return [tuple(part.split("\n", 1)) for part in parts[1:]]


def run_commands(commands: list[str], environment: dict[str, str]) -> list[tuple[int, str]]:
    """Exit status and output of each, all run by one shell, so that $? and variables go on."""
    script = [f'__mark() {{ local status=$?; echo "{MARK} $status"; return $status; }}', ":"]
    for command in commands:
        script += [command, "__mark"]
    result = subprocess.run(["bash", "-u", "-c", "\n".join(script)], env=environment, text=True, timeout=300,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    parts = re.split(rf"^{MARK} (\d+)\n", result.stdout, flags=re.MULTILINE)
    return [(int(status), text) for text, status in zip(parts[::2], parts[1::2])]


def matches(shown: str, printed: str) -> bool:
    pattern = re.escape(shown.rstrip("\n")).replace(r"\.\.\.", ".*?")
    return re.fullmatch(pattern, printed.rstrip("\n"), re.DOTALL) is not None


@pytest.mark.parametrize("page", pages_with("sh"))
def test_shell(page, environment):
    for block in blocks_of(page, "sh"):
        commands = commands_of(block)
        results = run_commands([command for command, _ in commands], environment)
        assert len(results) == len(commands), block
        for (command, shown), (status, printed) in zip(commands, results):
            if shown is None:
                assert status == 0, f"{page}: {command}\n{printed}"
            else:
                assert matches(shown, printed), f"{page}: {command}\n{printed}\ninstead of\n{shown}"


# --------------------------------------------------------------------------------------------------------------- c


def output_of_c(page: str) -> str:
    """The text block that stands next behind the page's last C block."""
    blocks = all_blocks(page)
    last = max(at for at, (language, _) in enumerate(blocks) if language == "c")
    language, text = blocks[last + 1]
    assert language == "text", f"{page}: the output of the C program is not shown"
    return text


@pytest.mark.parametrize("page", pages_with("c"))
def test_c(page, folder, root, build):
    (folder / "page.c").write_text("".join(blocks_of(page, "c")))
    flags = ["-std=c17", "-Wall", "-Wextra", "-Werror", f"-I{root}/include"]
    linked = [f"-L{build}", "-lheadrace", f"-Wl,-rpath,{build}"]
    subprocess.run(["cc", *flags, "page.c", "-o", "page", *linked], check=True)
    result = subprocess.run(["./page", "model"], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert matches(output_of_c(page), result.stdout), result.stdout
    failed = subprocess.run(["./page", "cut.safetensors"], capture_output=True, text=True, timeout=60, check=False)
    assert failed.returncode == 1 and "MetadataIncompleteBuffer: " in failed.stderr


# ---------------------------------------------------------------------------------------------------------- python


@pytest.fixture
def alone(monkeypatch):
    """What torchrun sets, for a group of one; other tests have groups of more run this page."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))
    yield
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@pytest.fixture
def stand_ins():
    """What a page switches on is switched off again."""
    yield
    from headrace.compat import safetensors

    safetensors.disable()


@pytest.mark.parametrize("page", pages_with("python"))
def test_python(page, folder, alone, stand_ins):
    pytest.importorskip("headrace")
    names, printed = {}, io.StringIO()
    for block in blocks_of(page, "python"):
        for word, module in NEEDS.items():
            if word in block:
                pytest.importorskip(module)
        with contextlib.redirect_stdout(printed):
            exec(compile(block, f"{page}:\n{block}", "exec"), names)
    if page == "docs/python.md":
        assert "TensorNotFound no.such.tensor" in printed.getvalue()


# -------------------------------------------------------------------------------------------------- this test's own


def test_output_is_compared():
    assert matches("a ... c\n", "a b c\n") and matches("a\n...\n", "a\nb\nc\n")
    assert not matches("a b\n", "a c\n") and not matches("a\n", "a\nb\n")
    assert commands_of("$ one\nprints\n$ two\n") == [("one", "prints\n"), ("two", "")]


def test_no_page_is_without_examples():
    assert {"README.md", "docs/command.md"} <= set(pages_with("sh"))
    assert {"README.md", "docs/c.md"} <= set(pages_with("c"))
    assert {"README.md", "docs/python.md"} <= set(pages_with("python"))

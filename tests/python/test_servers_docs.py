"""What docs/vllm.md and docs/sglang.md tell users to copy, taken from the pages and run in the stand-ins: commands,
calls and options. A line that nothing here knows is an error, so that page and test stay together.
"""

import importlib
import os
import re
import shlex
import tomllib

import conftest
import pytest
from test_servers import EXPERTS, Model, check, servers, weights  # noqa: F401

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")

from headrace import _weights  # noqa: E402


def page(name):
    return (conftest.ROOT / "docs" / f"{name}.md").read_text()


def commands_of(name):
    """The indented lines."""
    return [line.strip() for line in page(name).splitlines() if line.startswith("    ")]


def calls_of(name):
    """From Python: `...`."""
    return [call for text in re.findall(r"From Python: (.*?)\. ", page(name).replace("\n", " "))
            for call in re.findall(r"`(.*?)`", text)]


@pytest.fixture
def folder(servers, weights, tmp_path, monkeypatch):  # noqa: F811
    """The working folder: `org/name` is the model, `folder` the files of save_sharded_state."""
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "name").symlink_to(tmp_path)
    (tmp_path / "folder").mkdir()
    state = {name: torch.randn(part.shape).to(part.dtype) for name, part in Model(0).state_dict().items()}
    safetensors_torch.save_file(state, tmp_path / "folder" / "model-rank-0-part-0.safetensors")
    monkeypatch.chdir(tmp_path)
    return state


def run(command):
    """What a command of a page makes: the stand-in's LLM or Engine; None for the installation."""
    words = shlex.split(command)
    if words[:2] == ["pip", "install"]:
        project = tomllib.loads((conftest.ROOT / "pyproject.toml").read_text())["project"]
        assert words[2:] == [project["name"]]
        return None
    if words[0] == "vllm":
        importlib.import_module("vllm").LLM.make_model = lambda: Model(0)
        return importlib.import_module("vllm.entrypoints.cli.main").main(words[1:])
    assert words[:3] == ["python", "-m", "sglang.launch_server"], f"an unknown command: {command}"
    importlib.import_module("sglang").Engine.make_model = lambda: Model(0)
    return importlib.import_module("sglang.launch_server").main(words[3:])


def check_loaded(server, state, weights):  # noqa: F811
    assert server.loader.headrace.bytes_wanted > 0
    if "sharded" in str(getattr(server.loader, "load_config", "").load_format):
        assert all(torch.equal(server.model.state_dict()[name], tensor) for name, tensor in state.items())
    else:
        check(server.model, weights, range(EXPERTS))


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_commands(folder, weights, name):  # noqa: F811
    made = [run(command) for command in commands_of(name)]
    loaded = [server for server in made if server is not None]
    assert len(made) == len(loaded) + 1 and loaded
    for server in loaded:
        check_loaded(server, folder, weights)


@pytest.mark.parametrize("name, class_name", [("vllm", "LLM"), ("sglang", "Engine")])
def test_calls(folder, weights, name, class_name):  # noqa: F811
    package = importlib.import_module(name)
    getattr(package, class_name).make_model = lambda: Model(0)
    calls = calls_of(name)
    assert calls
    for call in calls:
        check_loaded(eval(call, {name: package}), folder, weights)


def test_all_options_are_in_the_table():
    of_vllm = importlib.import_module("headrace.vllm").KEYS_OF_DEFAULT
    rows = re.findall(r"^\| (`.*?) \|", page("vllm"), re.MULTILINE)
    assert sorted(key for row in rows for key in re.findall(r"`(\w+)`", row)) == sorted([*_weights.KEYS, *of_vllm])


def test_an_option_of_the_page_reaches_the_loader(folder):
    extra = [server.loader.headrace for server in map(run, commands_of("vllm")) if server is not None]
    assert any(reader._window_bytes == 4 << 30 for reader in extra)


def test_what_a_page_must_not_say(folder):
    with pytest.raises(AssertionError, match="an unknown command"):
        run("vlm serve org/name")
    for command in ("vllm serve org/name --load-fromat headrace", "vllm serve org/name --model-loader-extra-config {"):
        with pytest.raises(SystemExit):
            run(command)
    with pytest.raises(ValueError, match="unknown key 'window'"):
        run("""vllm serve org/name --load-format headrace --model-loader-extra-config '{"window": 1}'""")
    assert os.path.samefile("org/name", ".")

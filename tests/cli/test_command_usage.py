"""Verbs, options, help, manual pages, the environment, and output that cannot be written."""

import json
import re
import subprocess

import pytest

from command import BINARY, ROOT, SMALL, VERBS, run, run_json, write

PAGES = ROOT / "docs" / "man"
HELP_OPTION = re.compile(r"^  --([a-z-]+)", re.MULTILINE)


def test_version():
    result = run("--version")
    assert result.returncode == 0
    assert re.fullmatch(r"headrace \d+\.\d+\.\d+\n", result.stdout)


def test_help_lists_the_verbs():
    result = run("--help")
    assert result.returncode == 0
    assert re.findall(r"^  ([a-z]+) ", result.stdout, re.MULTILINE) == VERBS


def test_no_verb():
    result = run()
    assert (result.returncode, result.stdout, result.stderr) == (2, "", run("--help").stdout)


@pytest.mark.parametrize("typed, answer", [
    ("chekc", "did you mean 'check'?"), ("lod", "did you mean 'load'?"), ("Ls", "did you mean 'ls'?"),
    ("frobnicate", "'headrace --help' lists the verbs"),
])
def test_unknown_verbs(typed, answer):
    result = run(typed)
    assert result.returncode == 2
    assert result.stdout == ""
    assert re.fullmatch(rf"headrace: unknown verb '{typed}'; {re.escape(answer)}\n", result.stderr)


@pytest.mark.parametrize("verb", VERBS)
def test_help_and_manual_page_name_the_same_options(verb):
    result = run(verb, "--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(f"usage: headrace {verb} [OPTION]...")
    page = (PAGES / f"headrace-{verb}.1").read_text()
    listed = re.findall(r"^\.It Fl -([a-z-]+)", page, re.MULTILINE)
    synopsis = re.findall(r"^\.Op Fl -([a-z-]+)", page, re.MULTILINE)
    options = HELP_OPTION.findall(result.stdout)
    assert len(options) == len(set(options))
    assert sorted(options) == sorted(listed)
    assert sorted(options) == sorted(synopsis + ["help"])
    assert {"json", "help"} <= set(options)


@pytest.mark.parametrize("verb", VERBS)
def test_help_and_manual_page_name_the_same_variables(verb):
    variables = re.findall(r"\[(HEADRACE_[A-Z_]+)\]", run(verb, "--help").stdout)
    page = (PAGES / f"headrace-{verb}.1").read_text()
    assert sorted(variables) == sorted(re.findall(r"^\.It Ev ([A-Z_]+)", page, re.MULTILINE))


def test_every_verb_has_a_page():
    assert sorted(p.name for p in PAGES.glob("headrace*.1")) == sorted(
        ["headrace.1"] + [f"headrace-{verb}.1" for verb in VERBS])
    summary = (PAGES / "headrace.1").read_text()
    assert sorted(re.findall(r"^\.It Xr headrace-([a-z]+) 1", summary, re.MULTILINE)) == sorted(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_unknown_options(verb):
    result = run(verb, "--frobnicate", "x")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == (
        f"headrace {verb}: unknown option '--frobnicate'; 'headrace {verb} --help' lists the options\n")
    assert run(verb, "-x").returncode == 2
    assert "did you mean --json?" in run(verb, "--jsno").stderr


@pytest.mark.parametrize("arguments, message", [
    (["load", "--threads"], "option --threads wants a value: N"),
    (["load", "--threads", "many", "x"], "option --threads: 'many' is not a number from 0 to 4294967295"),
    (["load", "--threads=-1", "x"], "option --threads: '-1' is not a number from 0 to 4294967295"),
    (["load", "--chunk", "4XB", "x"], "option --chunk: '4XB' is not a size such as 4MiB, 1G or 4096"),
    (["load", "--route=fast", "x"], "option --route: 'fast' is not auto, pread, uring, mmap or gds"),
    (["load", "--deadline=0", "x"], "option --deadline: '0' is not seconds such as 0.5, greater than 0"),
    (["ls", "--json=yes", "x"], "option --json takes no value"),
    (["ls", "--jso", "x"], "unknown option '--jso'; did you mean --json?"),
])
def test_wrong_values(arguments, message):
    result = run(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"headrace {arguments[0]}: {message}\n"


WRONG = [["load", "--threads"], ["load", "--threads", "many", "x"], ["ls", "--json=yes", "x"], ["chekc", "x"],
         ["frobnicate"], [], ["diff", "a"], ["diff", "a", "b", "c"], ["probe", "a", "b"]]
WRONG += [[verb, "--frobnicate"] for verb in VERBS] + [[verb] for verb in VERBS if verb not in ("probe", "doctor")]


@pytest.mark.parametrize("arguments", WRONG, ids=" ".join)
def test_wrong_usage_as_json(arguments):
    """Whatever is wrong, with --json among the arguments it is an object on stdout too, and the same text on stderr."""
    result = run(*arguments[:1], "--json", *arguments[1:])
    assert result.returncode == 2
    error = json.loads(result.stdout)["error"]
    assert (error["kind"], error["code"], error["file"]) == ("InvalidArgument", -40, None)
    assert result.stderr.splitlines()[0].endswith(": " + error["message"])


def test_a_wrong_environment_as_json():
    result = run("load", "x", "--json", env={"HEADRACE_THREADS": "many"})
    assert (result.returncode, json.loads(result.stdout)["error"]["kind"]) == (2, "InvalidArgument")
    assert run("load", "--bad", "--", "--json").stdout == ""  # a path


def test_the_number_of_operands():
    for verb in [verb for verb in VERBS if verb not in ("probe", "doctor")]:
        result = run(verb)
        assert result.returncode == 2
        assert result.stderr.startswith(f"headrace {verb}: an argument is missing\nusage: headrace {verb} ")
    assert run("diff", "a").returncode == 2
    assert "too many arguments" in run("diff", "a", "b", "c").stderr
    assert run("doctor", "a", "b").returncode == 2
    assert run("probe", "a", "b").returncode == 2


def test_both_forms_of_values(tmp_path):
    path = write(tmp_path / "x.safetensors", SMALL)
    assert run("ls", "--match=c", path).stdout == run("ls", path, "--match", "c").stdout
    assert run("ls", "--match=", path).returncode == 1


def test_two_dashes_end_the_options(tmp_path):
    write(tmp_path / "--json", SMALL)
    result = run("check", "--", "--json", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (0, "--json: ok (3 tensors, 24 bytes, 1 file)\n")
    assert run("check", "--", "--help", cwd=tmp_path).returncode == 1


@pytest.mark.parametrize("name", ["THREADS", "ROUTE", "CHUNK_BYTES", "WINDOW_BYTES", "QUEUE_DEPTH", "STAGING_BYTES",
                                  "LANES", "KEEP_CACHE"])
def test_the_environment_is_checked(tmp_path, name):
    path = write(tmp_path / "x.safetensors", SMALL)
    result = run("load", path, env={f"HEADRACE_{name}": "x"})
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"headrace load: environment variable HEADRACE_{name}: 'x' is not ")
    assert run("load", path, env={f"HEADRACE_{name}": ""}).returncode == 0
    assert run("check", path, env={f"HEADRACE_{name}": "x"}).returncode == 0


def test_options_win_over_the_environment(tmp_path):
    path = write(tmp_path / "x.safetensors", {"t": ("U8", [1 << 20], None)})
    variables = {"HEADRACE_THREADS": "2", "HEADRACE_ROUTE": "mmap"}
    report = run_json("load", "--json", "--threads", "1", "--route", "pread", path, env=variables)
    assert (report["threads"], report["route"]) == (1, "pread")


@pytest.mark.parametrize("verb", VERBS)
def test_a_full_disk_is_a_fault(tmp_path, verb):
    path = write(tmp_path / "x.safetensors", SMALL)
    operands = {"doctor": [], "diff": [path, path], "convert": [path, tmp_path / "o.safetensors"]}.get(verb, [path])
    with open("/dev/full", "w") as full:
        result = run(verb, *operands, capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert result.returncode == 3
    assert result.stderr == "headrace: cannot write the output: No space left on device\n"


def test_a_closed_pipe_is_a_fault(tmp_path):
    path = write(tmp_path / "x.safetensors", {f"t{i}": ("U8", [1], None) for i in range(5000)})
    process = subprocess.Popen([BINARY, "ls", str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.read(10)
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert (process.wait(timeout=60), errors) == (3, b"")

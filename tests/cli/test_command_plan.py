"""headrace plan and doctor: their form, and that a plan follows the options."""

from command import SMALL, run, run_json, write


def test_plan_is_json(tmp_path):
    path = write(tmp_path / "x.safetensors", SMALL)
    assert isinstance(run_json("plan", "--json", path), dict)


def test_plan_is_text(tmp_path):
    path = write(tmp_path / "x.safetensors", SMALL)
    result = run("plan", path)
    assert result.returncode == 0
    assert result.stdout.endswith("\n") and not result.stdout.endswith("\n\n")
    assert not result.stdout.startswith("{")


def test_plan_follows_the_options(tmp_path):
    path = write(tmp_path / "x.safetensors", {"t": ("U8", [1 << 20], None), "u": ("U8", [8], None)})
    plain = run("plan", "--json", path).stdout
    for option in (["--chunk=64KiB"], ["--match", "u"], ["--slice", "t=[1:3]"], ["--route", "pread"]):
        assert run("plan", "--json", *option, path).stdout != plain, option


def test_plan_moves_no_byte(tmp_path):
    path = write(tmp_path / "x.safetensors", {"t": ("U8", [0], None)}, header={
        "t": {"dtype": "U8", "shape": [1 << 40], "data_offsets": [0, 1 << 40]}})
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + (1 << 40))
    run_json("plan", "--json", "--chunk", "1GiB", path)


def test_plan_errors(tmp_path):
    path = write(tmp_path / "x.safetensors", SMALL)
    assert run_json("plan", "--json", "--match", "z", path, code=1)["error"]["kind"] == "TensorNotFound"
    assert run_json("plan", "--json", "--chunk", "3", path, code=2)["error"]["kind"] == "InvalidArgument"
    assert run("plan", tmp_path / "missing").returncode == 1


def test_doctor_as_json():
    report = run_json("doctor", "--json")
    version = run("--version").stdout.split()[1]
    assert report["version"] == version
    assert report["capabilities"]
    for capability in report["capabilities"]:
        assert list(capability) == ["name", "usable", "detail"]
        assert isinstance(capability["usable"], bool)
        assert capability["detail"]


def test_doctor_as_text():
    result = run("doctor")
    lines = result.stdout.splitlines()
    names = [c["name"] for c in run_json("doctor", "--json")["capabilities"]]
    assert (result.returncode, result.stderr) == (0, "")
    assert lines[0] == run("--version").stdout.strip()
    assert [line.split("  ")[0] for line in lines[1:]] == names


def test_doctor_of_a_path(tmp_path):
    path = write(tmp_path / "x.safetensors", SMALL)
    text = run_json("doctor", "--json", path)["storage"]
    assert text.split(":")[0].split(",")[0] in ("direct", "dontcache", "drop", "buffered")
    assert run_json("doctor", "--json", tmp_path)["storage"] == text
    assert run("doctor", path).stdout.splitlines()[-1].split(maxsplit=1) == ["storage", text]
    assert "storage" not in run_json("doctor", "--json")
    assert run("doctor", tmp_path / "missing").returncode == 1
    assert run_json("doctor", "--json", tmp_path / "missing", code=1)["error"]["kind"] == "IoError"

"""headrace ls: the table and its JSON."""

from command import SMALL, data_offset, run, run_json, write, write_raw, write_sharded


def test_the_table(tmp_path):
    path = write(tmp_path / "x.safetensors", {**SMALL, "long.name": ("F32", [], b"\0\0\0\0")})
    start = data_offset(path)
    result = run("ls", path)
    lines = [line.split() for line in result.stdout.splitlines()]
    assert (result.returncode, result.stderr) == (0, "")
    assert lines[:6] == [
        ["NAME", "DTYPE", "SHAPE", "BYTES", "FILE", "OFFSET", "ALIGNED"],
        ["a", "F32", "[2]", "8", "x.safetensors", f"{start}", "yes" if start % 4 == 0 else "no"],
        ["b.weight", "I16", "[2,3]", "12", "x.safetensors", f"{start + 8}", "yes" if start % 2 == 0 else "no"],
        ["c", "U8", "[4]", "4", "x.safetensors", f"{start + 20}", "yes"],
        ["long.name", "F32", "[]", "4", "x.safetensors", f"{start + 24}", "yes" if start % 4 == 0 else "no"],
        [],
    ]
    assert result.stdout.endswith(
        "U8      1 tensor   4 bytes\n"
        "I16     1 tensor  12 bytes\n"
        "F32    2 tensors  12 bytes\n"
        "total  4 tensors  28 bytes\n"
    )
    assert all(line == line.rstrip() for line in result.stdout.splitlines())
    columns = {line.index(word) for line, word in zip(result.stdout.splitlines(), ["DTYPE", "F32", "I16", "U8", "F32"])}
    assert len(columns) == 1


def test_json(tmp_path):
    tensors = {"c": ("U8", [1], None), "a": ("F32", [2], None)}
    path = write(tmp_path / "x.safetensors", tensors, metadata={"format": "pt", "é\"\n": "\u0000"})
    start, size = data_offset(path), path.stat().st_size
    assert run_json("ls", "--json", path) == {
        "files": [{
            "path": str(path), "size": size, "data_offset": start,
            "metadata": {"format": "pt", "é\"\n": "\u0000"},
        }],
        "tensors": [
            {"name": "c", "dtype": "U8", "shape": [1], "bytes": 1, "file": str(path), "offset": start, "aligned": True},
            {"name": "a", "dtype": "F32", "shape": [2], "bytes": 8, "file": str(path), "offset": start + 1,
             "aligned": (start + 1) % 4 == 0},
        ],
        "totals": {"U8": {"tensors": 1, "bytes": 1}, "F32": {"tensors": 1, "bytes": 8}},
        "warnings": [],
    }


def test_alignment_follows_the_offset(tmp_path):
    seen = set()
    for padding in range(8):
        path = write(tmp_path / "x.safetensors", {"t": ("C64", [1], None), "u": ("F4", [2], None)}, padding=padding)
        wide, narrow = run_json("ls", "--json", path)["tensors"]
        assert wide["aligned"] is (data_offset(path) % 8 == 0)
        assert narrow["aligned"] is True
        seen.add(wide["aligned"])
    assert seen == {True, False}


def test_match(tmp_path):
    path = write(tmp_path / "x.safetensors", {f"l.{i}.{k}": ("U8", [i], None) for i in range(3) for k in "qk"})
    names = lambda *options: [t["name"] for t in run_json("ls", "--json", *options, path)["tensors"]]
    assert names("--match", "l.1.*") == ["l.1.q", "l.1.k"]
    assert names("--match=*.q", "--match", "l.1.q", "--match", "l.2.k") == ["l.0.q", "l.1.q", "l.2.q", "l.2.k"]
    assert run_json("ls", "--json", "--match", "l.2.*", path)["totals"] == {"U8": {"tensors": 2, "bytes": 4}}


def test_a_name_with_brackets_matches_itself(tmp_path):
    path = write(tmp_path / "x.safetensors", {"w[1]": ("U8", [1], None), "w1": ("U8", [1], None)})
    assert [t["name"] for t in run_json("ls", "--json", "--match", "w[1]", path)["tensors"]] == ["w[1]"]


def test_no_match_is_a_no(tmp_path):
    path = write(tmp_path / "x.safetensors", SMALL)
    result = run("ls", "--match", "nothing*", path)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "headrace ls: TensorNotFound: --match: no tensor of 3 matches 'nothing*'\n"
    error = run_json("ls", "--json", "--match", "nothing*", path, code=1)["error"]
    assert error == {
        "kind": "TensorNotFound", "code": -11, "file": None, "tensor": None, "offset": None,
        "message": "--match: no tensor of 3 matches 'nothing*'",
    }


def test_shards(tmp_path):
    index = write_sharded(tmp_path / "m", {"sub/1.safetensors": {"a": SMALL["a"]}, "2.safetensors": {"c": SMALL["c"]}})
    listing = run_json("ls", "--json", index)
    assert {t["name"]: t["file"] for t in listing["tensors"]} == {
        "a": str(index.parent / "sub/1.safetensors"), "c": str(index.parent / "2.safetensors")}
    table = run("ls", index).stdout.splitlines()
    assert {line.split()[0]: line.split()[4] for line in table[1:3]} == {"a": "sub/1.safetensors", "c": "2.safetensors"}


def test_a_list_of_files(tmp_path):
    one = write(tmp_path / "1.safetensors", {"a": SMALL["a"]})
    two = write(tmp_path / "2.safetensors", {"c": SMALL["c"]})
    assert [t["file"] for t in run_json("ls", "--json", one, two)["tensors"]] == [str(one), str(two)]


def test_warnings(tmp_path):
    index = write_sharded(tmp_path / "m", {"1.safetensors": {"a": SMALL["a"]}}, total_size=5)
    (warning,) = run_json("ls", "--json", index)["warnings"]
    assert "5" in warning
    result = run("ls", index)
    assert result.returncode == 0
    assert result.stderr == f"headrace ls: warning: {warning}\n"


def test_an_invalid_file(tmp_path):
    path = write_raw(tmp_path / "x.safetensors", b'{"t":?}')
    error = run_json("ls", "--json", path, code=1)["error"]
    assert (error["kind"], error["code"], error["offset"]) == ("InvalidHeaderDeserialization", -5, 13)
    assert error["file"] == str(path)
    result = run("ls", path)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith(f"headrace ls: {path}: InvalidHeaderDeserialization: ")


def test_names_are_escaped_in_the_table_and_exact_in_json(tmp_path):
    path = write(tmp_path / "x.safetensors", {"a\n\x1b\x7fé": ("U8", [1], None)})
    assert "a\\x0a\\x1b\\x7fé  U8" in run("ls", path).stdout
    assert run_json("ls", "--json", path)["tensors"][0]["name"] == "a\n\x1b\x7fé"


def test_trailing_and_compat(tmp_path):
    path = write(tmp_path / "x.safetensors", SMALL, trailing=b"abc")
    assert run("ls", path).returncode == 1
    assert len(run_json("ls", "--json", "--allow-trailing", path)["tensors"]) == 3

"""`headrace check --json` on every file of tests/conformance/cases.tsv, under both modes, verdicts and kinds."""

import base64
import json
from pathlib import Path

import pytest

TABLE = Path(__file__).parents[1] / "conformance" / "cases.tsv"


def cases() -> list[dict[str, str]]:
    lines = TABLE.read_text().split("\n")
    columns = lines[0].removeprefix("#").split("\t")
    return [dict(zip((column.strip() for column in columns), line.split("\t"), strict=True))
            for line in lines if line and not line.startswith("#")]


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("conformance")
    for number, case in enumerate(cases()):
        (folder / f"{number}.safetensors").write_bytes(base64.b64decode(case["bytes_base64"]))
    return folder


def reports(headrace, files: Path, *options: str) -> list[dict]:
    """One report a case, in the order of the table."""
    paths = [files / f"{number}.safetensors" for number in range(len(cases()))]
    result = headrace.run("check", "--json", *options, *paths)
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [report["path"] for report in found] == [str(path) for path in paths]
    assert result.returncode == 1
    return found


def test_compat_says_what_the_reference_says(headrace, files):
    wrong = [(case["name"], case["reference_verdict"], case["reference_kind"], report)
             for case, report in zip(cases(), reports(headrace, files, "--compat"))
             if report["ok"] != (case["reference_verdict"] == "accept")
             or not report["ok"] and report["kind"] != case["reference_kind"]]
    assert not wrong


def test_strict_refuses_more(headrace, files):
    wrong = [(case["name"], case["strict_verdict"], case.get("strict_kind"), report)
             for case, report in zip(cases(), reports(headrace, files))
             if report["ok"] != (case["strict_verdict"] == "accept")
             or not report["ok"] and report["kind"] != case.get("strict_kind", report["kind"])]
    assert not wrong


def test_reports_say_what_is_wrong(headrace, files):
    for report in reports(headrace, files):
        assert set(report) == {"path", "ok", "kind", "tensor", "offset", "message"}
        assert report["ok"] or (report["kind"] and report["message"] and "\n" not in report["message"])

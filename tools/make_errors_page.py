"""Writes docs/errors.md from HR_ERROR_LIST: `make_errors_page.py [--check]`.

Code, kind and meaning are the list's of headrace.h; what Python raises is that of python/headrace/errors.py; cause and
remedy stand here. `--check` fails where the page, or the table here, is not in step with the list.
"""

import ast
import re
import sys
from pathlib import Path

HEADER = Path("include/headrace/headrace.h")
PYTHON = Path("python/headrace/errors.py")
PAGE = Path("docs/errors.md")

# What usually is behind it, and what to do.
REMEDIES = {
    "HEADER_TOO_SMALL": "An empty file or a download that was cut off. Fetch it again.",
    "HEADER_TOO_LARGE": "Something else than safetensors, or a file that was made to waste memory. Look at what it is.",
    "INVALID_HEADER_LENGTH": "A download that was cut off inside the header, or something else than safetensors. The "
                             "message says how many bytes are missing.",
    "INVALID_HEADER": "Damage, or a writer that uses another encoding. Fetch or write it again.",
    "INVALID_HEADER_DESERIALIZATION": "Damage, or a careless writer: the offset is where the JSON stops being what it "
                                      "must be. Write it again with a package that keeps to the format.",
    "INVALID_OFFSET": "A writer that pads, aliases or sorts wrongly. Load it with the program that wrote it, and write "
                      "it again.",
    "VALIDATION_OVERFLOW": "A file that was made to fool readers. Do not use it.",
    "MISALIGNED_SLICE": "A writer that gave an odd number of 4- or 6-bit elements. The shape must fill whole bytes.",
    "TENSOR_INVALID_INFO": "A writer that miscounts, often after a change of dtype. Write it again.",
    "METADATA_INCOMPLETE_BUFFER": "A download that was cut off (the message says how many bytes are missing), or bytes "
                                  "behind the last tensor, which `allow_trailing` and `--allow-trailing` let pass.",
    "TENSOR_NOT_FOUND": "Another name than the file has. `headrace ls` lists them; patterns must match something.",
    "DUPLICATE_TENSOR": "A file of which two readers may take different tensors. Write it again; compat mode takes the "
                        "last one, as the reference reader does.",
    "DUPLICATE_KEY": "As DuplicateTensor. In an index it is refused in both modes.",
    "NOT_SAFETENSORS": "A login page instead of a download, a Git LFS pointer, a PyTorch or GGUF file, a folder "
                       "without safetensors files: the message says which and what to do.",
    "NAME_HAS_NUL": "A name that C programs would cut. Write the file again, or open it in compat mode.",
    "RANK_TOO_LARGE": "No framework holds such a tensor. Compat mode opens it.",
    "LIMIT_EXCEEDED": "An index of over 200 MB or over 100,000 files: [the limits](format.md#limits).",
    "INDEX_INVALID": "Damage, several indexes in one folder (give the path of one), or an index without a "
                     "`weight_map`.",
    "INDEX_PATH_ESCAPES": "An absolute name, `..`, a backslash or a drive in the index. Do not use it.",
    "SHARD_MISSING": "A download that is not finished. The message names the files.",
    "TENSOR_NOT_IN_SHARD": "Index and files of different versions. Fetch both again.",
    "TENSOR_NOT_IN_INDEX": "As TensorNotInShard.",
    "TENSOR_IN_TWO_SHARDS": "Files of two checkpoints in one folder or list. Open one of the two.",
    "FILE_CHANGED": "Somebody wrote, replaced or removed the file after it was opened. Open it again when the writer "
                    "is done; writers should write to another name and rename.",
    "SHORT_READ": "The file was cut while it was read, or the file system lost bytes. Check it, and open it again.",
    "IO_ERROR": "What the system call said is in the message and in `sys_errno`: no such file, no permission, no "
                "descriptor left (`ulimit -n`), a disk or network that fails.",
    "NOT_A_REGULAR_FILE": "A pipe, a socket, a device, or a folder in a list of files. Give the file itself.",
    "OUT_OF_MEMORY": "The tensors do not fit. Stream under a window, load parts, or give the process more.",
    "DEVICE_ERROR": "A call of the CUDA driver or of cuFile failed: the message has its name and number. After a fault "
                    "of the device the process has to start anew.",
    "DEVICE_UNAVAILABLE": "No GPU, no driver, or a name that none has: the message says which. `headrace doctor` lists "
                          "what there is; `cpu` always is.",
    "UNSUPPORTED": "Dtypes that do not convert into each other ([the pairs](dtypes.md)), a slice of 4- or 6-bit "
                   "elements that is no whole bytes, a dtype that the framework or DLPack lacks, or a route that is "
                   "not usable here (`uring`, `gds`) or not for this device. The message says which.",
    "INVALID_ARGUMENT": "A mistake of the caller. The message says what was found and what is allowed.",
    "CANCELLED": "The load was cancelled, by the program or by its progress function.",
    "FORKED": "A loader or a load was used in a child of fork(). Make new ones there; checkpoints may be kept.",
    "DEADLINE_EXCEEDED": "Storage is slower than the deadline allows. The message says how far it came.",
    "END": "No failure: an iteration is over.",
    "GROUP_ERROR": "The message names the rank and what happened there, or what the ranks' requests differ in. Mend "
                   "that rank, and let all ranks load again.",
}

HEAD = """# Errors

<!-- Written by tools/make_errors_page.py: edit that, then run it. -->

Every error has a code, a kind and a message of one line: what was found, what is allowed, what to do. Where they are
known it also has the tensor, the file, the byte offset from the start of the file, and errno. C gets them in `struct
hr_error`, the command prints them and has them under `"error"` with `--json`, and Python raises
`headrace.errors.KIND`, which is a `HeadraceError` and, where the table says so, also a class of Python's own.

Kinds down to `TensorNotFound` are those of the reference reader. Codes are never reused; expect ones that you do not
know. The exit status of the command goes by the kind: [the command](command.md#exit-status).

| code | kind | meaning | likely cause, and what to do | Python |
| --- | --- | --- | --- | --- |
"""


def error_list() -> list[tuple[str, int, str, str]]:
    text = re.search(r"#define HR_ERROR_LIST\(X\)(.*?[^\\])\n", HEADER.read_text(), re.DOTALL)[1]
    rows = re.findall(r'X\((\w+), (\d+), "(\w+)", "([^"]*)"\)', text)
    assert len(rows) == text.count("X("), "a row of HR_ERROR_LIST has another form than this program knows"
    return [(name, int(number), kind, meaning) for name, number, kind, meaning in rows]


def python_bases() -> dict[str, str]:
    """Kind -> the name of Python's class that its exception also is."""
    for node in ast.parse(PYTHON.read_text()).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "_BUILTIN_BASES":
            return {ast.literal_eval(key): ", ".join(f"`{base.id}`" for base in value.elts)
                    for key, value in zip(node.value.keys, node.value.values)}
    raise SystemExit(f"{PYTHON} has no _BUILTIN_BASES")


def page() -> str:
    rows, bases = error_list(), python_bases()
    if {name for name, *_ in rows} != set(REMEDIES):
        raise SystemExit(f"make_errors_page: causes and HR_ERROR_LIST differ in "
                         f"{sorted({name for name, *_ in rows} ^ set(REMEDIES))}")
    bases["IoError"] += "; `FileNotFoundError` for ENOENT"
    bases["End"] = "never raised"
    lines = [f"| -{number} | `{kind}` | {meaning} | {REMEDIES[name]} | {bases.get(kind, '')} |"
             for name, number, kind, meaning in rows]
    return HEAD + "\n".join(lines).replace(" __metadata__ ", " `__metadata__` ") + "\n"


def main() -> int:
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page())
    elif PAGE.read_text() != page():
        print(f"{PAGE} is not in step with {HEADER}: run tools/make_errors_page.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

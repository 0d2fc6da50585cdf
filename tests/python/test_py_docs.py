"""The examples of docs/python.md and of the README, each run as it stands there, in one process, in their order."""

import re

import numpy
import pytest
import reference

pytest.importorskip("torch")


@pytest.fixture
def model(tmp_path):
    generator = numpy.random.default_rng(5)
    shapes = {"lm_head.weight": [16, 8], "layers.0.q.weight": [8, 8], "layers.1.q.weight": [8, 8], "layers.1.bias": [8]}
    tensors = {name: reference.random_tensor(generator, "F32", shape) for name, shape in shapes.items()}
    reference.write_by_hand(tmp_path / "model.safetensors", tensors, metadata={"format": "pt"})
    return str(tmp_path)


def test_the_readme(root, model):
    (example,) = re.findall(r"```python\n(.*?)```", (root / "README.md").read_text(), re.DOTALL)
    names = {"model": model}
    exec(compile(example, "README.md", "exec"), names)
    assert len(names["tensors"]) == 4


def test_examples(root, model, capsys):
    examples = re.findall(r"```python\n(.*?)```", (root / "docs" / "python.md").read_text(), re.DOTALL)
    assert len(examples) > 8
    names = {"model": model}
    for example in examples:
        exec(compile(example, example, "exec"), names)
    assert "TensorNotFound no.such.tensor" in capsys.readouterr().out

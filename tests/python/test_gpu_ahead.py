"""Lazy tensors that are read ahead for parameters on a real GPU, copied on several streams too. Skipped without one."""

import contextlib

import pytest
from test_ahead import LAYERS, Model, alternating, copies_of, halves, load, otherwise_in_layer_3, weights  # noqa: F401
from test_servers import servers  # noqa: F401

torch = pytest.importorskip("torch")
if torch.version.cuda is None or not torch.cuda.is_available():
    pytest.skip("torch finds no CUDA device", allow_module_level=True)


@pytest.mark.parametrize("rank", [0, 1])
def test_the_same_bits_with_a_load_a_layer(servers, weights, tmp_path, rank):  # noqa: F811
    model = Model(rank, device="cuda")
    assert load(tmp_path, weights, model).load_count == copies_of(model, [0]) + 1 + LAYERS - 1


@pytest.mark.parametrize("views_of", [halves, otherwise_in_layer_3, alternating])
@pytest.mark.parametrize("window_bytes", [600, 5000, 1 << 20])
def test_copies_on_another_stream(servers, weights, tmp_path, views_of, window_bytes):  # noqa: F811
    streams = [torch.cuda.Stream() for _ in range(2)]

    class OnStreams(Model):
        def copying(self):
            """Each copy is behind slow work of a stream that is not the one on which memory is made."""
            stream = streams[len(self.parameters) % 2]
            stream.wait_stream(torch.cuda.current_stream())  # which made the parameter
            context = contextlib.ExitStack()
            context.enter_context(torch.cuda.stream(stream))
            torch.cuda._sleep(200_000)
            return context

        def check(self, *arguments):
            torch.cuda.synchronize()
            return super().check(*arguments)

    load(tmp_path, weights, OnStreams(0, views_of, device="cuda"), window_bytes=window_bytes)

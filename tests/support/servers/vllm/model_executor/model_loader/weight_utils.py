"""The stock iterators. They count their calls, for tests of stepping aside."""

import safetensors

calls = []


def safetensors_weights_iterator(
    hf_weights_files,
    use_tqdm_on_load,
    safetensors_load_strategy=None,
    local_expert_ids=None,
    *,
    safetensors_prefetch_num_threads=8,
    safetensors_prefetch_block_size=1 << 24,
):
    calls.append("safetensors")
    for path in hf_weights_files:
        with safetensors.safe_open(path, framework="pt") as file:
            yield from ((name, file.get_tensor(name)) for name in file.keys())


def pt_weights_iterator(hf_weights_files, use_tqdm_on_load, pt_load_map_location="cpu"):
    calls.append("pt")
    yield from ()

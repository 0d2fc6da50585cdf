"""The stock iterators. They count their calls, for tests of stepping aside."""

import safetensors

calls = []


def safetensors_weights_iterator(
    hf_weights_files, disable_mmap=False, prefetch=False, prefetch_num_threads=4, drop_cache_after_load=False
):
    calls.append("safetensors")
    for path in hf_weights_files:
        with safetensors.safe_open(path, framework="pt") as file:
            yield from ((name, file.get_tensor(name)) for name in file.keys())


def buffered_multi_thread_safetensors_weights_iterator(
    hf_weights_files,
    max_workers,
    disable_mmap=False,
    prefetch=False,
    prefetch_num_threads=4,
    drop_cache_after_load=False,
):
    yield from safetensors_weights_iterator(hf_weights_files)

/*
 * raii_dlpack.cpp: the C API behind C++ ownership: `raii_dlpack PATH...`. `hr::load` gives tensors in DLPack's form,
 * which numpy, PyTorch, JAX and others take over without a copy; they outlive load, loader and checkpoint.
 */
#include <headrace/headrace.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

/* As <dlpack/dlpack.h> 1.0 declares it; a program that has that header includes it instead. */
struct DLManagedTensorVersioned {
    struct {
        std::uint32_t major, minor;
    } version;
    void *manager_ctx;
    void (*deleter)(DLManagedTensorVersioned *self);
    std::uint64_t flags;
    struct {
        void *data;
        struct {
            std::int32_t device_type, device_id;
        } device;
        std::int32_t ndim;
        struct {
            std::uint8_t code, bits;
            std::uint16_t lanes;
        } dtype;
        std::int64_t *shape, *strides;
        std::uint64_t byte_offset;
    } dl_tensor;
};

namespace hr
{
struct error : std::runtime_error {
    int code;
    explicit error(const hr_error &err) : std::runtime_error(err.message), code(err.code)
    {
    }
};

struct deleter {
    void operator()(hr_checkpoint *checkpoint) const
    {
        hr_checkpoint_close(checkpoint);
    }
    void operator()(hr_loader *loader) const
    {
        hr_loader_free(loader);
    }
    void operator()(hr_load *load) const
    {
        hr_load_free(load);
    }
    void operator()(DLManagedTensorVersioned *tensor) const
    {
        tensor->deleter(tensor);
    }
};
template <class object> using owner = std::unique_ptr<object, deleter>;

/* Calls a function whose last parameters are `object **ret, hr_error *err`. */
template <class object, class function, class... parameters> owner<object> make(function call, parameters... given)
{
    hr_error err = {};
    object *made = nullptr;
    if (call(given..., &made, &err))
        throw error(err);
    return owner<object>(made);
}

inline std::vector<owner<DLManagedTensorVersioned>> load(const hr_checkpoint *checkpoint)
{
    std::vector<hr_item> items(hr_checkpoint_count(checkpoint));
    for (std::size_t i = 0; i < items.size(); i++) {
        items[i].size = sizeof items[i];
        items[i].tensor_index = i;
    }
    owner<hr_loader> loader = make<hr_loader>(hr_loader_new, nullptr);
    owner<hr_load> running =
        make<hr_load>(hr_load_start, loader.get(), checkpoint, items.data(), items.size(), nullptr);
    std::vector<owner<DLManagedTensorVersioned>> tensors;
    hr_error err = {};
    for (std::size_t i = 0; i < items.size(); i++) {
        void *tensor = nullptr;
        if (hr_load_wait(running.get(), i, &err) || hr_load_take(running.get(), i, 1, &tensor, &err))
            throw error(err);
        tensors.emplace_back(static_cast<DLManagedTensorVersioned *>(tensor));
    }
    return tensors;
}
} // namespace hr

static void print(const std::string &name, const DLManagedTensorVersioned &managed)
{
    std::uint64_t count = 1;
    for (std::int32_t d = 0; d < managed.dl_tensor.ndim; d++)
        count *= static_cast<std::uint64_t>(managed.dl_tensor.shape[d]);
    const std::uint64_t bytes = count * managed.dl_tensor.dtype.bits * managed.dl_tensor.dtype.lanes / 8;
    const unsigned char *data =
        static_cast<const unsigned char *>(managed.dl_tensor.data) + managed.dl_tensor.byte_offset;
    std::uint64_t sum = 0;
    for (std::uint64_t i = 0; i < bytes; i++)
        sum += data[i];
    std::printf("%s %" PRIu64 " bytes, sum of bytes %" PRIu64 "\n", name.c_str(), bytes, sum);
}

int main(int, char **arguments)
try {
    std::vector<const char *> paths;
    while (*++arguments)
        paths.push_back(*arguments);
    std::vector<std::string> names;
    std::vector<hr::owner<DLManagedTensorVersioned>> tensors;
    {
        const hr_open_options *options = nullptr;
        hr::owner<hr_checkpoint> checkpoint =
            hr::make<hr_checkpoint>(hr_checkpoint_open, paths.data(), paths.size(), options);
        for (std::size_t i = 0; i < hr_checkpoint_count(checkpoint.get()); i++)
            names.emplace_back(hr_checkpoint_at(checkpoint.get(), i)->name);
        tensors = hr::load(checkpoint.get());
    } /* everything but the tensors is gone */
    for (std::size_t i = 0; i < tensors.size(); i++)
        print(names[i], *tensors[i]);
} catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}

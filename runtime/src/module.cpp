// The Python face of the core. Everything here is called by acdc_runtime, which has validated the model.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstring>

#include "linear.h"
#include "tensors.h"

namespace nb = nanobind;
using namespace nb::literals;

typedef nb::ndarray<const float, nb::c_contig, nb::device::cpu> Numbers;
typedef nb::ndarray<nb::c_contig, nb::device::cpu> Any;
typedef std::vector<int64_t> Sizes;

typedef std::vector<std::pair<Ref, Any>> Arrays;

// Where arrays begin, and how many bytes they have.
template <class Void>
static std::vector<std::pair<Ref, std::pair<Void*, size_t>>> bytes_of(const Arrays& arrays) {
    std::vector<std::pair<Ref, std::pair<Void*, size_t>>> found;
    for (auto& a : arrays) found.push_back({a.first, {a.second.data(), a.second.nbytes()}});
    return found;
}

static Finish finish_of(int64_t residual, bool has_residual, float low, float high, int activation, float alpha, float beta) {
    Finish f;
    f.residual = residual;
    f.has_residual = has_residual;
    f.low = low;
    f.high = high;
    f.activation = Activation(activation);
    f.alpha = alpha;
    f.beta = beta;
    return f;
}

static Geometry geometry_of(const Sizes& s) {
    if (s.size() != 14) throw std::invalid_argument("geometry: 14 numbers");
    for (int64_t v : s)
        if (v < 0 || v > (int64_t(1) << 31)) throw std::invalid_argument("geometry: a size outside 0..2^31");
    auto i = [&](size_t k) { return int(s[k]); };
    return {s[0], s[1], s[2], s[3], s[4], s[5], i(6), i(7), i(8), i(9), i(10), i(11), i(12), i(13)};
}

static void keep(Program& p, std::unique_ptr<Operator> op, const std::string& name, const std::string& kind) {
    op->name = name;
    op->kind = kind;
    p.add(std::move(op));
}

NB_MODULE(_core, m) {
    nb::set_leak_warnings(false);
    m.attr("FEW_TOKENS") = kFewTokens;
    nb::class_<Pool>(m, "Pool").def(nb::init<int>()).def_prop_ro("threads", &Pool::threads);

    nb::class_<Weights>(m, "Weights")
        .def("__init__",
             [](Weights* self, Numbers matrix, nb::object bias, int taps, int method, int block, int layout) {
                 if (matrix.ndim() != 2) throw std::invalid_argument("weights: a matrix");
                 if (method < 0 || method > 2) throw std::invalid_argument("weights: method 0, 1 or 2");
                 if (layout < 0 || layout > 2) throw std::invalid_argument("weights: layout 0, 1 or 2");
                 if (matrix.shape(0) > (1u << 30) || matrix.shape(1) > (1u << 30))
                     throw std::invalid_argument("weights: more than 2^30 rows or columns");
                 const float* b = nullptr;
                 Numbers held;
                 if (!bias.is_none()) {
                     held = nb::cast<Numbers>(bias);
                     if (held.size() != matrix.shape(0)) throw std::invalid_argument("weights: one bias per row");
                     b = held.data();
                 }
                 nb::gil_scoped_release release;
                 new (self) Weights(matrix.data(), int(matrix.shape(0)), int(matrix.shape(1)), taps, b, Method(method), block,
                                    Layout(layout));
             },
             "matrix"_a, "bias"_a.none(), "taps"_a, "method"_a, "block"_a, "layout"_a)
        .def_ro("nonzeros", &Weights::nonzeros)
        .def_prop_ro("bytes", &Weights::bytes)
        .def_ro("block", &Weights::block);

    nb::class_<Program>(m, "Program")
        .def("__init__",
             [](Program* self, std::shared_ptr<Pool> pool, const std::string& kernels, size_t arena) {
                 const Kernels* k = kernels_for(kernels.c_str());
                 if (!k) throw std::invalid_argument("this processor or build has no " + kernels + " kernels");
                 if (arena > (size_t(1) << 46)) throw std::invalid_argument("more than 64 TiB of memory");
                 new (self) Program(std::move(pool), k, arena);
             },
             "pool"_a, "kernels"_a, "arena"_a)
        .def("constant", [](Program& p, Numbers x) { return p.constant(x.data(), x.size()); })
        .def_prop_ro("kernels", [](Program& p) { return std::string(p.kernels().name); })
        .def_prop_ro("memory", &Program::memory)
        .def("convolution",
             [](Program& p, const std::string& name, const Sizes& geometry, std::shared_ptr<Weights> w, Ref in, Ref out,
                Ref residual, bool has_residual, float low, float high, int act, float alpha, float beta) {
                 const char* kinds[] = {"conv dense", "conv sparse", "conv block4"};
                 const char* kind = kinds[int(w->method)];
                 keep(p, make_convolution(p, geometry_of(geometry), std::move(w), in, out,
                                          finish_of(residual, has_residual, low, high, act, alpha, beta)), name, kind);
             })
        .def("window",
             [](Program& p, const std::string& name, int kind, const Sizes& geometry, Ref in, Ref out, Numbers weights,
                Numbers bias, bool count_padding, int pad_bottom, int pad_right, float low, float high, int act, float alpha,
                float beta) {
                 const char* kinds[] = {"conv depthwise", "max pool", "average pool"};
                 if (kind < 0 || kind > 2) throw std::invalid_argument("window: kind 0, 1 or 2");
                 keep(p, make_window(p, geometry_of(geometry), Window(kind), in, out,
                                     std::vector<float>(weights.data(), weights.data() + weights.size()),
                                     std::vector<float>(bias.data(), bias.data() + bias.size()), count_padding, pad_bottom,
                                     pad_right, finish_of(0, false, low, high, act, alpha, beta)), name, kinds[kind]);
             })
        .def("linear",
             [](Program& p, const std::string& name, std::shared_ptr<Weights> w, int64_t tokens, Ref in, Ref out, Ref residual,
                bool has_residual, float low, float high, int act, float alpha, float beta) {
                 const char* kinds[] = {"linear dense", "linear sparse", "linear block4"};
                 const char* kind = kinds[int(w->method)];
                 keep(p, make_linear(p, std::move(w), tokens, in, out,
                                     finish_of(residual, has_residual, low, high, act, alpha, beta)), name, kind);
             })
        .def("matmul",
             [](Program& p, const std::string& name, int64_t a_rows, int64_t k, int64_t n, Ref a, Ref b, Ref out,
                const Sizes& a_at, const Sizes& b_at) {
                 keep(p, make_matmul(p, a_rows, k, n, a, b, out, a_at, b_at), name, "matmul");
             })
        .def("to_tiles", [](Program& p, const std::string& name, int64_t n, int64_t c, int64_t hw, Ref in, Ref out) {
            keep(p, make_to_tiles(p, {n, c, hw}, in, out), name, "to tiles");
        })
        .def("to_plain", [](Program& p, const std::string& name, int64_t n, int64_t c, int64_t hw, Ref in, Ref out) {
            keep(p, make_to_plain(p, {n, c, hw}, in, out), name, "to plain");
        })
        .def("tile_mean", [](Program& p, const std::string& name, int64_t n, int64_t c, int64_t hw, Ref in, Ref out) {
            keep(p, make_tile_mean(p, {n, c, hw}, in, out), name, "global mean");
        })
        .def("tile_concat", [](Program& p, const std::string& name, int64_t pixels, const Sizes& channels, const Sizes& in,
                               Ref out) { keep(p, make_tile_concat(p, pixels, channels, in, out), name, "concat"); })
        .def("unary", [](Program& p, const std::string& name, int kind, int64_t n, Ref in, Ref out, float low, float high) {
            keep(p, make_unary(p, Activation(kind), n, in, out, low, high), name, "activation");
        })
        .def("binary", [](Program& p, const std::string& name, int kind, const Sizes& dims, const Sizes& a_step,
                          const Sizes& b_step, Ref a, Ref b, Ref out) {
            keep(p, make_binary(p, Arithmetic(kind), dims, a_step, b_step, a, b, out), name, "arithmetic");
        })
        .def("copy", [](Program& p, const std::string& name, const Sizes& dims, const Sizes& in_step, const Sizes& out_step,
                        int64_t in_at, int64_t out_at, Ref in, Ref out) {
            keep(p, make_copy(p, dims, in_step, out_step, in_at, out_at, in, out), name, "copy");
        })
        .def("softmax", [](Program& p, const std::string& name, int64_t rows, int64_t n, Ref in, Ref out) {
            keep(p, make_softmax(p, rows, n, in, out), name, "softmax");
        })
        .def("normalise", [](Program& p, const std::string& name, int64_t rows, int64_t n, Ref in, Ref scale, bool has_scale,
                             Ref bias, bool has_bias, Ref out, float epsilon, bool centred) {
            keep(p, make_normalise(p, rows, n, in, scale, has_scale, bias, has_bias, out, epsilon, centred), name, "norm");
        })
        .def("reduce", [](Program& p, const std::string& name, int64_t outer, int64_t n, int64_t inner, int kind, Ref in,
                          Ref out) { keep(p, make_reduce(p, outer, n, inner, kind, in, out), name, "reduce"); })
        .def("gather", [](Program& p, const std::string& name, int64_t outer, int64_t axis, int64_t inner, int64_t count,
                          Ref data, Ref indices, Ref out) {
            keep(p, make_gather(p, outer, axis, inner, count, data, indices, out), name, "gather");
        })
        .def("cast", [](Program& p, const std::string& name, int64_t n, Ref in, Ref out) {
            keep(p, make_cast(p, n, in, out), name, "cast");
        })
        .def("resize", [](Program& p, const std::string& name, int64_t maps, int64_t h, int64_t w, std::vector<int32_t> y0,
                          std::vector<int32_t> y1, std::vector<float> wy, std::vector<int32_t> x0, std::vector<int32_t> x1,
                          std::vector<float> wx, Ref in, Ref out) {
            keep(p, make_resize(p, maps, h, w, {y0, y1, wy}, {x0, x1, wx}, in, out), name, "resize");
        })
        .def("run",
             [](Program& p, const Arrays& inputs, const Arrays& outputs, bool profile) {
                 const auto in = bytes_of<const void>(inputs);
                 const auto out = bytes_of<void>(outputs);
                 nb::gil_scoped_release release;
                 p.run(in, out, profile);
             },
             "inputs"_a, "outputs"_a, "profile"_a = false)
        .def("run_parts",
             [](Program& p, Pool& pool, int64_t parts, const Arrays& inputs, const Arrays& outputs) {
                 const auto in = bytes_of<const void>(inputs);
                 const auto out = bytes_of<void>(outputs);
                 nb::gil_scoped_release release;
                 p.run_parts(pool, parts, in, out);
             })
        .def("run_cut",
             [](Program& p, Program& tail, Pool& pool, int64_t parts, int64_t images, const Arrays& inputs, Ref between,
                Ref into, size_t floats, const Arrays& outputs) {
                 const auto in = bytes_of<const void>(inputs);
                 const auto out = bytes_of<void>(outputs);
                 nb::gil_scoped_release release;
                 p.run_cut(tail, pool, parts, images, in, between, into, floats, out);
             })
        .def("timings", [](Program& p) {
            nb::list rows;
            for (auto& op : p.operators)
                rows.append(nb::make_tuple(op->name, op->kind, op->seconds, op->flops,
                                           op->density));
            return rows;
        });

    m.def("best_kernels", [] { return std::string(kernels_for("")->name); });
    m.def("available_kernels", [] {
        nb::list names;
        for (const char* n : {"avx512", "avx2", "generic"})
            if (kernels_for(n)) names.append(n);
        return names;
    });
}

#include "convolution.h"

#include <algorithm>
#include <stdexcept>

namespace {

// True where so many threads share each output tile that they had better pack its inputs together, and then wait for
// each other, than each for itself.
bool packs_together(int64_t tiles, int threads) { return threads >= 4 * tiles; }

struct Convolution : Operator {
    Geometry g;
    std::shared_ptr<Weights> w;
    Ref from, to;
    Finish finish;
    std::unique_ptr<View> view;  // null where the map is read in place

    void run(const Context& c) override {
        const float* map = c.in(from);
        const float* source = view ? view->source(c, map, c.w.shared.get()) : map;
        const int64_t tiles = tiles_of(g.out_pixels()), chunks = w->chunks;
        float* packed = view && packs_together(tiles, c.pool.threads()) ? c.w.shared.get() + view->plane_floats() : nullptr;
        if (packed)
            c.pool.each(tiles * w->blocks, [&](int64_t item, int) {
                const int64_t t = item / w->blocks, b = item % w->blocks;
                pack(c, source, t, int(b), packed + (size_t(t) * w->columns + size_t(b) * w->block) * kTile);
            });
        // Threads share the output tile by tile, and where two shares meet inside a tile, by chunks of its rows.
        c.pool.ranges(tiles * chunks, chunks, [&](int64_t first, int64_t end, int slot) {
            for (int64_t t = first / chunks; t * chunks < end; t++)
                rows_of_tile(c, source, packed, t, int(std::max<int64_t>(0, first - t * chunks)),
                             int(std::min(chunks, end - t * chunks)), c.w.scratch[size_t(slot)].get());
        });
    }

    // Computes chunks [ch0, ch1) of output tile t; `packed` holds all packed inputs, or is null.
    void rows_of_tile(const Context& c, const float* source, const float* packed, int64_t t, int ch0, int ch1,
                      float* scratch) const {
        const int pixels = pixels_of(g.out_pixels(), t);
        const size_t size = size_t(w->rows) * kTile;
        float* tile = c.out(to) + size_t(t) * size;
        Epilogue e;
        e.low = finish.low;
        e.high = finish.high;
        if (finish.has_residual) e.residual = c.in(finish.residual) + size_t(t) * size;
        for (int b = 0; b < w->blocks; b++) {
            const float* in;
            if (!view) {
                in = source + (size_t(t) * g.channels + size_t(b) * w->block) * kTile;
            } else if (packed) {
                in = packed + (size_t(t) * w->columns + size_t(b) * w->block) * kTile;
            } else {
                pack(c, source, t, b, scratch);
                in = scratch;
            }
            // The sparse kernel jumps about its block, so nothing but this tells the cache what comes next.
            const char* next = nullptr;
            size_t bytes = 0;
            if (!view) {
                const size_t at = (size_t(t) * g.channels + size_t(b + 1) * w->block) * kTile;
                const size_t end = size_t(tiles_of(g.out_pixels())) * g.channels * kTile;
                if (at < end) {
                    next = reinterpret_cast<const char*>(source + at);
                    bytes = std::min(size_t(w->block) * kTile, end - at) * sizeof(float) / size_t(ch1 - ch0);
                }
            }
            for (int ch = ch0; ch < ch1; ch++) {
                for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(next + size_t(ch - ch0) * bytes + i, 0, 2);
                if (ch + 1 < w->chunks) {
                    const size_t r0 = size_t(ch + 1) * w->chunk * kTile, r1 = std::min(r0 + w->chunk * kTile, size);
                    if (b == 0)
                        for (size_t i = r0; i < r1; i += 16) __builtin_prefetch(tile + i, 1, 2);
                    if (e.residual && b == w->blocks - 1)
                        for (size_t i = r0; i < r1; i += 16) __builtin_prefetch(e.residual + i, 0, 2);
                }
                w->multiply(c.k, ch, b, in, pixels, tile, e);
            }
        }
        if (finish.activation != Activation::none) {
            const int r0 = ch0 * w->chunk, r1 = std::min(w->rows, ch1 * w->chunk);
            float* x = tile + size_t(r0) * kTile;
            c.k.activate(finish.activation, x, x, size_t(r1 - r0) * kTile, finish.alpha, finish.beta);
        }
    }

    void pack(const Context& c, const float* source, int64_t t, int b, float* to) const {
        size_t offset;
        const Gathering from = view->tile(t, &offset);
        const int taps = g.taps(), first = b * w->block / taps, n = std::min(w->block, w->columns - b * w->block) / taps;
        c.k.pack(from, source + offset + size_t(first) * view->channel_stride(), view->channel_stride(), n, to);
    }
};

struct WindowOp : Operator {
    Geometry g;
    Window window;
    Ref from, to;
    std::vector<float> weights, bias;
    Floats scale;
    Finish finish;
    std::unique_ptr<View> view;

    void run(const Context& c) override {
        const float* source = view->source(c, c.in(from), c.w.shared.get());
        float* out = c.out(to);
        constexpr int64_t group = 64;
        const int64_t groups = (g.channels + group - 1) / group;
        c.pool.each(tiles_of(g.out_pixels()) * groups, [&](int64_t item, int) {
            const int64_t t = item / groups, c0 = item % groups * group, n = std::min(group, g.channels - c0);
            size_t offset;
            const Gathering gather = view->tile(t, &offset);
            float* o = out + (size_t(t) * g.channels + c0) * kTile;
            c.k.window(window, gather, source + offset + size_t(c0) * view->channel_stride(), view->channel_stride(), int(n),
                       weights.empty() ? nullptr : weights.data() + c0 * g.taps(), scale ? scale.get() + t * kTile : nullptr,
                       bias.empty() ? nullptr : bias.data() + c0, finish.low, finish.high, o);
            if (finish.activation != Activation::none)
                c.k.activate(finish.activation, o, o, size_t(n) * kTile, finish.alpha, finish.beta);
        });
    }
};

}  // namespace

std::unique_ptr<Operator> make_convolution(Program& p, const Geometry& g, std::shared_ptr<Weights> weights, Ref in,
                                           Ref out, const Finish& finish) {
    g.validate();
    if (weights->taps != g.taps() || weights->columns != g.channels * g.taps())
        throw std::invalid_argument("convolution: weights do not fit the input");
    p.check(in, double(tiles_of(g.in_pixels())) * double(g.channels) * kTile, false);
    const double out_size = double(tiles_of(g.out_pixels())) * weights->rows * kTile;
    p.check(out, out_size, true);
    if (finish.has_residual) p.check(finish.residual, out_size, false);
    auto op = std::make_unique<Convolution>();
    op->g = g;
    op->from = in;
    op->to = out;
    op->finish = finish;
    if (!g.pointwise()) {
        op->view = std::make_unique<View>(g, p.kernels().lanes);
        op->scratch_floats = size_t(weights->block) * kTile;
        const int64_t tiles = tiles_of(g.out_pixels());
        const bool together = packs_together(tiles, p.pool().threads());
        op->shared_floats = op->view->plane_floats() + (together ? size_t(tiles) * weights->columns * kTile : 0);
    }
    op->flops = 2.0 * double(weights->nonzeros) * double(g.out_pixels());
    op->density = double(weights->nonzeros) / (double(weights->rows) * weights->columns);
    op->w = std::move(weights);
    return op;
}

std::unique_ptr<Operator> make_window(Program& p, const Geometry& g, Window kind, Ref in, Ref out,
                                      std::vector<float> weights, std::vector<float> bias, bool count_padding,
                                      int pad_bottom, int pad_right, const Finish& finish) {
    g.validate();
    if (kind == Window::weighted && weights.size() != size_t(g.channels) * g.taps())
        throw std::invalid_argument("depthwise: weights do not fit the input");
    if (!bias.empty() && bias.size() != size_t(g.channels)) throw std::invalid_argument("depthwise: bias does not fit");
    p.check(in, double(tiles_of(g.in_pixels())) * double(g.channels) * kTile, false);
    p.check(out, double(tiles_of(g.out_pixels())) * double(g.channels) * kTile, true);
    auto op = std::make_unique<WindowOp>();
    op->g = g;
    op->window = kind;
    op->from = in;
    op->to = out;
    if (kind == Window::weighted) {  // eight channels side by side, as the kernel takes them
        const size_t taps = size_t(g.taps());
        op->weights.assign(size_t(g.channels + 7) / 8 * 8 * taps, 0.f);
        for (size_t c = 0; c < size_t(g.channels); c++)
            for (size_t t = 0; t < taps; t++) op->weights[(c / 8 * taps + t) * 8 + c % 8] = weights[c * taps + t];
    }
    op->bias = std::move(bias);
    op->finish = finish;
    op->view = std::make_unique<View>(g, p.kernels().lanes);
    op->shared_floats = op->view->plane_floats();
    op->flops = 2.0 * g.taps() * double(g.out_pixels()) * double(g.channels);
    if (kind == Window::sum) {  // one over how many pixels each output sees
        op->scale = aligned_floats(size_t(tiles_of(g.out_pixels())) * kTile);
        const int64_t outs = g.out_height * g.out_width;
        for (int64_t q = 0; q < g.out_pixels(); q++) {
            const int64_t y = q % outs / g.out_width, x = q % g.out_width;
            auto seen = [&](int64_t at, int kernel, int dilation, int64_t size, int pad_end) {
                int n = 0;
                for (int k = 0; k < kernel; k++) {
                    const int64_t i = at + int64_t(k) * dilation;
                    n += count_padding ? i < size + pad_end : i >= 0 && i < size;
                }
                return n;
            };
            const int n = seen(y * g.stride_h - g.pad_top, g.kernel_h, g.dilation_h, g.height, pad_bottom) *
                          seen(x * g.stride_w - g.pad_left, g.kernel_w, g.dilation_w, g.width, pad_right);
            op->scale[size_t(q)] = n ? 1.f / float(n) : 0.f;
        }
    }
    return op;
}

#include "convolution.h"

#include <algorithm>
#include <stdexcept>

namespace {

// Threads that share so many products: one where they are done before another could help.
int threads_for(Program& p, double products) { return products < double(1 << 18) ? 1 : p.pool().threads(); }

template <class Body>
void share(const Context& c, const Pieces& pieces, const Body& body) {
    if (pieces.starts.size() > 2) return c.pool.each(pieces.starts, body);
    for (size_t i = 0; i < pieces.list.size(); i++) body(int64_t(i), 0);
}

struct Convolution : Operator {
    Geometry g;
    std::shared_ptr<Weights> w;
    Ref from, to;
    Finish finish;
    std::unique_ptr<View> view;  // null where the map is read in place
    Pieces in_place;             // then these

    void run(const Context& c) override {
        const float* map = c.in(from);
        const float* source = view ? view->source(c, map, c.w.shared.get()) : map;
        const Pieces& pieces = view ? view->pieces() : in_place;
        share(c, pieces, [&](int64_t i, int slot) {
            piece(c, source, i, pieces.list[size_t(i)], c.w.scratch[size_t(slot)].get());
        });
    }

    void piece(const Context& c, const float* source, int64_t i, const Piece& p, float* scratch) const {
        const size_t size = size_t(w->rows) * kTile;
        const int all = pixels_of(g.out_pixels(), p.tile), ch0 = p.begin(w->chunks), ch1 = p.end(w->chunks);
        const int beyond = p.first + p.count == all ? w->beyond(c.k, all) : 0;
        float* tile = c.out(to) + size_t(p.tile) * size + p.first;
        Epilogue e;
        e.low = finish.low;
        e.high = finish.high;
        if (finish.has_residual) e.residual = c.in(finish.residual) + size_t(p.tile) * size + p.first;
        for (int b = 0; b < w->blocks && ch0 < ch1; b++) {
            const float* in = scratch;
            // The sparse kernel jumps about its block, so nothing but this tells the cache what comes next.
            const char* next = nullptr;
            size_t bytes = 0;
            if (view) {
                pack(c, source, i, b, scratch);
            } else {
                const size_t at = (size_t(p.tile) * g.channels + size_t(b) * w->block) * kTile;
                const size_t after = at + size_t(w->block) * kTile, end = size_t(tiles_of(g.out_pixels())) * g.channels * kTile;
                in = source + at + p.first;
                if (after < end) {
                    next = reinterpret_cast<const char*>(source + after);
                    bytes = std::min(size_t(w->block) * kTile, end - after) * sizeof(float) / size_t(ch1 - ch0);
                }
            }
            for (int ch = ch0; ch < ch1; ch++) {
                for (size_t k = 0; k < bytes; k += 64) __builtin_prefetch(next + size_t(ch - ch0) * bytes + k, 0, 2);
                if (ch + 1 < ch1) {
                    const size_t r0 = size_t(ch + 1) * w->chunk * kTile, r1 = std::min(r0 + w->chunk * kTile, size - p.first);
                    if (b == 0)
                        for (size_t k = r0; k < r1; k += 16) __builtin_prefetch(tile + k, 1, 2);
                    if (e.residual && b == w->blocks - 1)
                        for (size_t k = r0; k < r1; k += 16) __builtin_prefetch(e.residual + k, 0, 2);
                }
                w->multiply(c.k, ch, b, in, p.count, beyond, tile, e);
            }
        }
        if (finish.activation != Activation::none)
            for (int r = ch0 * w->chunk; r < std::min(w->rows, ch1 * w->chunk); r++) {
                float* x = tile + size_t(r) * kTile;
                c.k.activate(finish.activation, x, x, size_t(p.count), finish.alpha, finish.beta);
            }
    }

    void pack(const Context& c, const float* source, int64_t i, int b, float* to) const {
        size_t offset;
        const Gathering from = view->piece(i, &offset);
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
        const Pieces& pieces = view->pieces();
        share(c, pieces, [&](int64_t i, int) {
            const Piece& p = pieces.list[size_t(i)];
            const int groups = int((g.channels + 7) / 8);  // eight channels at a time
            const int c0 = p.begin(groups) * 8, n = std::min(p.end(groups) * 8, int(g.channels)) - c0;
            if (n < 1) return;
            size_t offset;
            const Gathering gather = view->piece(i, &offset);
            float* o = out + (size_t(p.tile) * g.channels + c0) * kTile + p.first;
            c.k.window(window, gather, source + offset + size_t(c0) * view->channel_stride(), view->channel_stride(), n,
                       weights.empty() ? nullptr : weights.data() + c0 * g.taps(),
                       scale ? scale.get() + p.tile * kTile + p.first : nullptr, bias.empty() ? nullptr : bias.data() + c0,
                       finish.low, finish.high, o);
            if (finish.activation != Activation::none)
                for (int ch = 0; ch < n; ch++)
                    c.k.activate(finish.activation, o + ch * kTile, o + ch * kTile, size_t(p.count), finish.alpha, finish.beta);
        });
    }
};

}  // namespace

std::unique_ptr<Operator> make_convolution(Program& p, const Geometry& g, std::shared_ptr<Weights> weights, Ref in,
                                           Ref out, const Finish& finish) {
    g.validate();
    if (weights->layout != Layout::pixels || weights->taps != g.taps() || weights->columns != g.channels * g.taps())
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
    // One row at a time is slow on less than four vectors of pixels, and dense weights are many to read twice.
    const int least = weights->method != Method::block4 && weights->chunks > 1 ? 4 : 1;
    const double moved = g.pointwise() ? 0 : double(weights->columns);  // packing counts, too
    const int threads = threads_for(p, (double(weights->nonzeros) + moved) * double(g.out_pixels()));
    Pieces pieces = pieces_of(g.out_pixels(), threads, least);
    if (g.pointwise()) {
        op->in_place = std::move(pieces);
    } else {
        op->view = std::make_unique<View>(g, p.kernels().lanes, std::move(pieces));
        op->scratch_floats = size_t(weights->block) * kTile;
        op->shared_floats = op->view->plane_floats();
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
    const double products = double(g.taps()) * double(g.out_pixels()) * double(g.channels);
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
    op->view = std::make_unique<View>(g, p.kernels().lanes, pieces_of(g.out_pixels(), threads_for(p, products)));
    op->shared_floats = op->view->plane_floats();
    op->flops = 2.0 * products;
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

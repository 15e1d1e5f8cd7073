#include "linear.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace {

constexpr int kDepth = 384;  // columns of one dense block: 384 x 112 floats stay in L2

struct Linear : Operator {
    std::shared_ptr<Weights> w;
    int64_t tokens;
    int64_t tiles, per;  // of tokens: about equal ones, one for each thread where they stay large
    Ref from, to;
    Finish finish;

    void run(const Context& c) override {
        if (w->method == Method::dense) return dense(c);
        if (w->layout == Layout::vectors) return vectors(c);
        sparse(c);
    }

    void finish_rows(const Context& c, float* out, int64_t rows, int64_t n) const {
        if (finish.activation == Activation::none) return;
        for (int64_t r = 0; r < rows; r++)
            c.k.activate(finish.activation, out + r * w->rows, out + r * w->rows, size_t(n), finish.alpha, finish.beta);
    }

    void dense(const Context& c) const {
        const float *x = c.in(from), *residual = finish.has_residual ? c.in(finish.residual) : nullptr;
        float* out = c.out(to);
        const int64_t tiles = (w->rows + kTile - 1) / kTile, group = 48, groups = (tokens + group - 1) / group;
        c.pool.each(tiles * groups, [&](int64_t item, int) {
            const int64_t t = item / groups, m0 = item % groups * group, m = std::min(group, tokens - m0);
            const int n = int(std::min<int64_t>(kTile, w->rows - t * kTile));
            float* o = out + m0 * w->rows + t * kTile;
            Epilogue e;
            e.low = finish.low;
            e.high = finish.high;
            e.column_bias = w->bias.empty() ? nullptr : w->bias.data() + t * kTile;
            e.residual = residual ? residual + m0 * w->rows + t * kTile : nullptr;
            e.residual_stride = size_t(w->rows);
            for (int k = 0; k < w->columns; k += kDepth) {
                const int depth = std::min(kDepth, w->columns - k);
                e.first = k == 0;
                e.last = k + depth == w->columns;
                c.k.gemm(x + m0 * w->columns + k, size_t(w->columns), int(m), depth,
                         w->dense.get() + (size_t(t) * w->columns + k) * kTile, n, o, size_t(w->rows), e);
            }
            finish_rows(c, o, m, n);
        });
    }

    // A few tokens: a dot product per row.
    void vectors(const Context& c) const {
        const float *x = c.in(from), *residual = finish.has_residual ? c.in(finish.residual) : nullptr;
        float* out = c.out(to);
        constexpr int64_t group = 64;
        const int64_t groups = (w->rows + group - 1) / group;
        c.pool.each(groups, [&](int64_t item, int) {
            const int64_t r0 = item * group, r1 = std::min<int64_t>(w->rows, r0 + group);
            for (int64_t m = 0; m < tokens; m++) {
                float sums[group];
                for (int64_t r = r0; r < r1; r++) sums[r - r0] = w->bias.empty() ? 0.f : w->bias[size_t(r)];
                c.k.dots(w->entries.data(), w->entry_start.data() + r0, size_t(r1 - r0), x + m * w->columns, sums);
                for (int64_t r = r0; r < r1; r++) {
                    float y = sums[r - r0];
                    if (residual) y += residual[m * w->rows + r];
                    out[m * w->rows + r] = y < finish.low ? finish.low : y > finish.high ? finish.high : y;
                }
                finish_rows(c, out + m * w->rows + r0, 1, r1 - r0);
            }
        });
    }

    // Tokens become pixels: tiles of up to 112 are transposed, multiplied as a 1x1 convolution, and transposed back.
    void sparse(const Context& c) const {
        const float *x = c.in(from), *residual = finish.has_residual ? c.in(finish.residual) : nullptr;
        float *out = c.out(to), *turned = c.w.shared.get();
        const int64_t blocks = (w->columns + 63) / 64;
        c.pool.each(tiles * blocks, [&](int64_t item, int) {
            const int64_t t = item / blocks, k = item % blocks * 64;
            c.k.transpose(x + t * per * w->columns + k, size_t(w->columns), int(std::min<int64_t>(64, w->columns - k)),
                          int(std::min(per, tokens - t * per)), turned + (t * w->columns + k) * kTile);
        });
        c.pool.each(tiles * w->chunks, [&](int64_t item, int slot) {
            const int64_t t = item / w->chunks, count = std::min(per, tokens - t * per);
            const int ch = int(item % w->chunks), r0 = ch * w->chunk, r1 = std::min(w->rows, r0 + w->chunk);
            float* tile = c.w.scratch[size_t(slot)].get();
            Epilogue e;
            e.low = -std::numeric_limits<float>::infinity();
            e.high = -e.low;
            for (int b = 0; b < w->blocks; b++)
                w->multiply(c.k, ch, b, turned + (t * w->columns + int64_t(b) * w->block) * kTile, int(count), 0, tile, e);
            for (int64_t m = 0; m < count; m++) {
                float* o = out + (t * per + m) * w->rows;
                for (int r = r0; r < r1; r++) {
                    float y = tile[size_t(r) * kTile + m];
                    if (residual) y += residual[(t * per + m) * w->rows + r];
                    o[r] = y < finish.low ? finish.low : y > finish.high ? finish.high : y;
                }
                finish_rows(c, o + r0, 1, r1 - r0);
            }
        });
    }
};

struct MatMul : Operator {
    int64_t m, k, n;
    Ref a, b, to;
    std::vector<int64_t> a_at, b_at;

    void run(const Context& c) override {
        const float *x = c.in(a), *y = c.in(b);
        float* out = c.out(to);
        const int64_t tiles = (n + kTile - 1) / kTile;
        c.pool.each(int64_t(a_at.size()) * tiles, [&](int64_t item, int slot) {
            const int64_t i = item / tiles, t = item % tiles;
            const int columns = int(std::min<int64_t>(kTile, n - t * kTile));
            float* packed = c.w.scratch[size_t(slot)].get();
            Epilogue e;
            e.low = -std::numeric_limits<float>::infinity();
            e.high = -e.low;
            for (int64_t k0 = 0; k0 < k; k0 += kDepth) {
                const int depth = int(std::min<int64_t>(kDepth, k - k0));
                for (int j = 0; j < depth; j++)
                    std::memcpy(packed + size_t(j) * kTile, y + b_at[size_t(i)] + (k0 + j) * n + t * kTile,
                                size_t(columns) * sizeof(float));
                e.first = k0 == 0;
                e.last = k0 + depth == k;
                c.k.gemm(x + a_at[size_t(i)] + k0, size_t(k), int(m), depth, packed, columns, out + i * m * n + t * kTile,
                         size_t(n), e);
            }
        });
    }
};

}  // namespace

std::unique_ptr<Operator> make_linear(Program& p, std::shared_ptr<Weights> weights, int64_t tokens, Ref in, Ref out,
                                      const Finish& finish) {
    if (tokens < 0 || weights->taps != 1) throw std::invalid_argument("linear: bad shape");
    if (weights->layout == Layout::pixels) throw std::invalid_argument("linear: the weights of a convolution");
    p.check(in, double(tokens) * weights->columns, false);
    p.check(out, double(tokens) * weights->rows, true);
    if (finish.has_residual) p.check(finish.residual, double(tokens) * weights->rows, false);
    auto op = std::make_unique<Linear>();
    op->tokens = tokens;
    const int64_t units = (tokens + kUnit - 1) / kUnit;
    op->tiles = std::max(tiles_of(tokens), std::min<int64_t>(p.pool().threads(), (units + 3) / 4));
    op->per = op->tiles ? (units + op->tiles - 1) / op->tiles * kUnit : 0;
    if (op->per) op->tiles = (tokens + op->per - 1) / op->per;
    op->from = in;
    op->to = out;
    op->finish = finish;
    if (weights->method != Method::dense && weights->layout == Layout::tokens) {
        op->shared_floats = size_t(op->tiles) * weights->columns * kTile;
        op->scratch_floats = size_t(weights->rows) * kTile;
    }
    op->flops = 2.0 * double(weights->nonzeros) * double(tokens);
    op->density = double(weights->nonzeros) / (double(weights->rows) * weights->columns);
    op->w = std::move(weights);
    return op;
}

std::unique_ptr<Operator> make_matmul(Program& p, int64_t m, int64_t k, int64_t n, Ref a, Ref b, Ref out,
                                      std::vector<int64_t> a_at, std::vector<int64_t> b_at) {
    if (m < 1 || k < 1 || n < 1 || a_at.size() != b_at.size() || m > (1 << 30) || k > (1 << 30) || n > (1 << 30))
        throw std::invalid_argument("matmul: bad shape");
    int64_t a_end = 0, b_end = 0;
    for (size_t i = 0; i < a_at.size(); i++) {
        if (a_at[i] < 0 || b_at[i] < 0) throw std::invalid_argument("matmul: negative offset");
        a_end = std::max(a_end, a_at[i]);
        b_end = std::max(b_end, b_at[i]);
    }
    p.check(a, double(a_end) + double(m) * double(k), false);
    p.check(b, double(b_end) + double(k) * double(n), false);
    p.check(out, double(a_at.size()) * double(m) * double(n), true);
    auto op = std::make_unique<MatMul>();
    op->m = m;
    op->k = k;
    op->n = n;
    op->a = a;
    op->b = b;
    op->to = out;
    op->flops = 2.0 * double(m) * double(k) * double(n) * double(a_at.size());
    op->a_at = std::move(a_at);
    op->b_at = std::move(b_at);
    op->scratch_floats = size_t(kDepth) * kTile;
    return op;
}

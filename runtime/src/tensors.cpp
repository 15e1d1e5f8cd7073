#include "tensors.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <stdexcept>

namespace {

// An operator that is only a function: the closure holds its shape.
struct Simple : Operator {
    std::function<void(const Context&)> body;
    void run(const Context& c) override { body(c); }
};

std::unique_ptr<Simple> simple(std::function<void(const Context&)> body) {
    auto op = std::make_unique<Simple>();
    op->body = std::move(body);
    return op;
}

double product(std::initializer_list<int64_t> sizes) {
    double n = 1;
    for (int64_t s : sizes) {
        if (s < 0) throw std::invalid_argument("a negative size");
        n *= double(s);
    }
    if (n > 9e15) throw std::invalid_argument("a tensor of more than 2^53 values");
    return n;
}

constexpr int64_t kGrain = 16384;  // numbers one thread takes at a time

// Calls body(first, count) for pieces of 0..n-1.
template <class Body>
void pieces(const Context& c, int64_t n, const Body& body) {
    c.pool.each((n + kGrain - 1) / kGrain, [&](int64_t i, int) { body(i * kGrain, std::min(kGrain, n - i * kGrain)); });
}

float sum_of(const float* x, int64_t n) {
    float s[8] = {0};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++) s[j] += x[i + j];
    for (; i < n; i++) s[0] += x[i];
    return ((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7]));
}

// Calls body(image, first pixel in the image, first pixel in the tile, count) for what a tile holds of each image.
template <class Body>
void tile_pieces(const Map& m, int64_t tile, const Body& body) {
    const int64_t end = std::min((tile + 1) * kTile, m.n * m.pixels);
    for (int64_t q = tile * kTile; q < end;) {
        const int64_t image = q / m.pixels, at = q % m.pixels, n = std::min(end - q, m.pixels - at);
        body(image, at, q % kTile, n);
        q += n;
    }
}

}  // namespace

std::unique_ptr<Operator> make_to_tiles(Program& p, Map m, Ref in, Ref out) {
    p.check(in, product({m.n, m.channels, m.pixels}), false);
    p.check(out, product({tiles_of(m.n * m.pixels), m.channels, kTile}), true);
    return simple([=](const Context& c) {
        const float* x = c.in(in);
        float* o = c.out(out);
        c.pool.each(tiles_of(m.n * m.pixels), [&](int64_t t, int) {
            tile_pieces(m, t, [&](int64_t image, int64_t at, int64_t to, int64_t n) {
                for (int64_t ch = 0; ch < m.channels; ch++)
                    std::memcpy(o + (t * m.channels + ch) * kTile + to, x + (image * m.channels + ch) * m.pixels + at,
                                size_t(n) * 4);
            });
        });
    });
}

std::unique_ptr<Operator> make_to_plain(Program& p, Map m, Ref in, Ref out) {
    p.check(out, product({m.n, m.channels, m.pixels}), true);
    p.check(in, product({tiles_of(m.n * m.pixels), m.channels, kTile}), false);
    return simple([=](const Context& c) {
        const float* x = c.in(in);
        float* o = c.out(out);
        c.pool.each(tiles_of(m.n * m.pixels), [&](int64_t t, int) {
            tile_pieces(m, t, [&](int64_t image, int64_t at, int64_t from, int64_t n) {
                for (int64_t ch = 0; ch < m.channels; ch++)
                    std::memcpy(o + (image * m.channels + ch) * m.pixels + at, x + (t * m.channels + ch) * kTile + from,
                                size_t(n) * 4);
            });
        });
    });
}

std::unique_ptr<Operator> make_tile_mean(Program& p, Map m, Ref in, Ref out) {
    p.check(in, product({tiles_of(m.n * m.pixels), m.channels, kTile}), false);
    p.check(out, product({m.n, m.channels}), true);
    return simple([=](const Context& c) {
        const float* x = c.in(in);
        float* o = c.out(out);
        constexpr int64_t group = 128;
        const int64_t groups = (m.channels + group - 1) / group;
        c.pool.each(m.n * groups, [&](int64_t item, int) {
            const int64_t image = item / groups, c0 = item % groups * group, c1 = std::min(m.channels, c0 + group);
            for (int64_t ch = c0; ch < c1; ch++) {
                float s = 0;
                for (int64_t q = image * m.pixels, end = q + m.pixels; q < end;) {
                    const int64_t n = std::min(end - q, kTile - q % kTile);
                    s += sum_of(x + (q / kTile * m.channels + ch) * kTile + q % kTile, n);
                    q += n;
                }
                o[image * m.channels + ch] = s / float(m.pixels);
            }
        });
    });
}

std::unique_ptr<Operator> make_tile_concat(Program& p, int64_t pixels, std::vector<int64_t> channels, std::vector<Ref> in,
                                           Ref out) {
    int64_t all = 0;
    if (channels.size() != in.size()) throw std::invalid_argument("concat: as many sizes as inputs");
    for (size_t i = 0; i < in.size(); i++) {
        p.check(in[i], product({tiles_of(pixels), channels[i], kTile}), false);
        all += channels[i];
    }
    p.check(out, product({tiles_of(pixels), all, kTile}), true);
    return simple([=](const Context& c) {
        c.pool.each(tiles_of(pixels), [&](int64_t t, int) {
            float* o = c.out(out) + t * all * kTile;
            for (size_t i = 0; i < in.size(); i++) {
                const int64_t n = channels[i] * kTile;
                std::memcpy(o, c.in(in[i]) + t * n, size_t(n) * 4);
                o += n;
            }
        });
    });
}

std::unique_ptr<Operator> make_unary(Program& p, Activation kind, int64_t n, Ref in, Ref out, float low, float high) {
    p.check(in, product({n}), false);
    p.check(out, double(n), true);
    return simple([=](const Context& c) {
        pieces(c, n, [&](int64_t at, int64_t m) { c.k.activate(kind, c.in(in) + at, c.out(out) + at, size_t(m), low, high); });
    });
}

namespace {
struct Strided {
    std::vector<int64_t> dims, a, b;
    int64_t outer = 1, inner = 1, a_inner = 0, b_inner = 0;
    double a_end = 1, b_end = 1;  // floats reached

    Strided(std::vector<int64_t> dims_, std::vector<int64_t> a_, std::vector<int64_t> b_)
        : dims(std::move(dims_)), a(std::move(a_)), b(std::move(b_)) {
        if (dims.size() != a.size() || dims.size() != b.size() || dims.size() > 16)
            throw std::invalid_argument("as many steps as dimensions, at most 16");
        double size = 1;
        for (size_t i = 0; i < dims.size(); i++) {
            if (dims[i] < 0 || a[i] < 0 || b[i] < 0) throw std::invalid_argument("a negative size or step");
            size *= double(dims[i]);
            a_end += double(std::max<int64_t>(dims[i] - 1, 0)) * double(a[i]);
            b_end += double(std::max<int64_t>(dims[i] - 1, 0)) * double(b[i]);
        }
        if (size > 9e15) throw std::invalid_argument("a tensor of more than 2^53 values");
        if (size == 0) a_end = b_end = 0;
        if (!dims.empty()) {
            inner = dims.back();
            a_inner = a.back();
            b_inner = b.back();
            dims.pop_back();
            for (int64_t d : dims) outer *= d;
        }
    }
    void at(int64_t i, int64_t* x, int64_t* y) const {
        *x = *y = 0;
        for (size_t d = dims.size(); d-- > 0;) {
            const int64_t k = i % dims[d];
            i /= dims[d];
            *x += k * a[d];
            *y += k * b[d];
        }
    }
    int64_t grain() const { return std::max<int64_t>(1, kGrain / std::max<int64_t>(1, inner)); }
};
}  // namespace

std::unique_ptr<Operator> make_binary(Program& p, Arithmetic kind, std::vector<int64_t> dims, std::vector<int64_t> a_step,
                                      std::vector<int64_t> b_step, Ref a, Ref b, Ref out) {
    Strided s(std::move(dims), std::move(a_step), std::move(b_step));
    if (s.a_inner > 1 || s.b_inner > 1) throw std::invalid_argument("binary: the last step is 0 or 1");
    p.check(a, s.a_end, false);
    p.check(b, s.b_end, false);
    p.check(out, double(s.outer) * double(s.inner), true);
    return simple([=](const Context& c) {
        if (s.outer == 1 && s.a_inner == 1 && s.b_inner == 1) {
            pieces(c, s.inner, [&](int64_t at, int64_t n) {
                c.k.arithmetic(kind, c.in(a) + at, c.in(b) + at, c.out(out) + at, size_t(n), 0);
            });
            return;
        }
        const int64_t grain = s.grain();
        c.pool.each((s.outer + grain - 1) / grain, [&](int64_t item, int) {
            for (int64_t i = item * grain; i < std::min(s.outer, (item + 1) * grain); i++) {
                int64_t x, y;
                s.at(i, &x, &y);
                float* o = c.out(out) + i * s.inner;
                if (s.a_inner == 0 && s.b_inner == 0)
                    for (int64_t j = 0; j < s.inner; j++) c.k.arithmetic(kind, c.in(a) + x, c.in(b) + y, o + j, 1, 0);
                else
                    c.k.arithmetic(kind, c.in(a) + x, c.in(b) + y, o, size_t(s.inner), s.a_inner == 0 ? 1 : s.b_inner == 0 ? 2 : 0);
            }
        });
    });
}

std::unique_ptr<Operator> make_copy(Program& p, std::vector<int64_t> dims, std::vector<int64_t> in_step,
                                    std::vector<int64_t> out_step, int64_t in_at, int64_t out_at, Ref in, Ref out) {
    Strided s(std::move(dims), std::move(in_step), std::move(out_step));
    if (in_at < 0 || out_at < 0) throw std::invalid_argument("copy: a negative offset");
    p.check(in, s.a_end + double(in_at), false);
    p.check(out, s.b_end + double(out_at), true);
    return simple([=](const Context& c) {
        const int64_t grain = s.grain();
        c.pool.each((s.outer + grain - 1) / grain, [&](int64_t item, int) {
            for (int64_t i = item * grain; i < std::min(s.outer, (item + 1) * grain); i++) {
                int64_t x, y;
                s.at(i, &x, &y);
                const float* from = c.in(in) + in_at + x;
                float* to = c.out(out) + out_at + y;
                if (s.a_inner == 1 && s.b_inner == 1)
                    std::memcpy(to, from, size_t(s.inner) * 4);
                else
                    for (int64_t j = 0; j < s.inner; j++) to[j * s.b_inner] = from[j * s.a_inner];
            }
        });
    });
}

std::unique_ptr<Operator> make_softmax(Program& p, int64_t rows, int64_t n, Ref in, Ref out) {
    p.check(in, product({rows, n}), false);
    p.check(out, product({rows, n}), true);
    return simple([=](const Context& c) {
        const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, n));
        c.pool.each((rows + grain - 1) / grain, [&](int64_t item, int) {
            for (int64_t r = item * grain; r < std::min(rows, (item + 1) * grain); r++)
                c.k.softmax(c.in(in) + r * n, c.out(out) + r * n, size_t(n));
        });
    });
}

std::unique_ptr<Operator> make_normalise(Program& p, int64_t rows, int64_t n, Ref in, Ref scale, bool has_scale, Ref bias,
                                         bool has_bias, Ref out, float epsilon, bool centred) {
    p.check(in, product({rows, n}), false);
    p.check(out, product({rows, n}), true);
    if (has_scale) p.check(scale, double(n), false);
    if (has_bias) p.check(bias, double(n), false);
    return simple([=](const Context& c) {
        const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, n));
        c.pool.each((rows + grain - 1) / grain, [&](int64_t item, int) {
            for (int64_t r = item * grain; r < std::min(rows, (item + 1) * grain); r++)
                c.k.normalise(c.in(in) + r * n, c.out(out) + r * n, size_t(n), has_scale ? c.in(scale) : nullptr,
                              has_bias ? c.in(bias) : nullptr, epsilon, centred);
        });
    });
}

std::unique_ptr<Operator> make_reduce(Program& p, int64_t outer, int64_t n, int64_t inner, int kind, Ref in, Ref out) {
    p.check(in, product({outer, n, inner}), false);
    p.check(out, product({outer, inner}), true);
    if (n < 1 || kind < 0 || kind > 2) throw std::invalid_argument("reduce: nothing to reduce");
    return simple([=](const Context& c) {  // kind 0: mean, 1: sum, 2: maximum
        c.pool.each(outer, [&](int64_t i, int) {
            const float* x = c.in(in) + i * n * inner;
            float* o = c.out(out) + i * inner;
            if (inner == 1 && kind != 2) {
                o[0] = sum_of(x, n) / (kind == 0 ? float(n) : 1.f);
                return;
            }
            std::memcpy(o, x, size_t(inner) * 4);
            for (int64_t j = 1; j < n; j++)
                for (int64_t k = 0; k < inner; k++) {
                    const float v = x[j * inner + k];
                    o[k] = kind == 2 ? (v > o[k] || v != v ? v : o[k]) : o[k] + v;
                }
            if (kind == 0)
                for (int64_t k = 0; k < inner; k++) o[k] /= float(n);
        });
    });
}

std::unique_ptr<Operator> make_gather(Program& p, int64_t outer, int64_t axis, int64_t inner, int64_t count, Ref data,
                                      Ref indices, Ref out) {
    p.check(data, product({outer, axis, inner}), false);
    p.check(indices, product({count}) * 2, false);
    p.check(out, product({outer, count, inner}), true);
    return simple([=](const Context& c) {
        const int64_t* index = reinterpret_cast<const int64_t*>(c.in(indices));
        for (int64_t i = 0; i < count; i++)
            if (index[i] < -axis || index[i] >= axis)
                throw std::out_of_range("index " + std::to_string(index[i]) + " is outside an axis of " + std::to_string(axis));
        c.pool.each(outer * count, [&](int64_t item, int) {
            const int64_t o = item / count, i = index[item % count], at = i < 0 ? i + axis : i;
            std::memcpy(c.out(out) + item * inner, c.in(data) + (o * axis + at) * inner, size_t(inner) * 4);
        });
    });
}

std::unique_ptr<Operator> make_cast(Program& p, int64_t n, Ref in, Ref out) {
    p.check(in, product({n}) * 2, false);
    p.check(out, double(n), true);
    return simple([=](const Context& c) {
        const int64_t* x = reinterpret_cast<const int64_t*>(c.in(in));
        for (int64_t i = 0; i < n; i++) c.out(out)[i] = float(x[i]);
    });
}

std::unique_ptr<Operator> make_resize(Program& p, int64_t maps, int64_t height, int64_t width, Axis y, Axis x, Ref in,
                                      Ref out) {
    auto fits = [](const Axis& a, int64_t size) {
        if (a.low.size() != a.high.size() || a.low.size() != a.weight.size()) throw std::invalid_argument("resize: bad table");
        for (size_t i = 0; i < a.low.size(); i++)
            if (a.low[i] < 0 || a.low[i] >= size || a.high[i] < 0 || a.high[i] >= size)
                throw std::invalid_argument("resize: a coordinate outside the map");
    };
    fits(y, height);
    fits(x, width);
    const int64_t oh = int64_t(y.low.size()), ow = int64_t(x.low.size());
    p.check(in, product({maps, height, width}), false);
    p.check(out, product({maps, oh, ow}), true);
    return simple([=](const Context& c) {
        c.pool.each(maps, [&](int64_t m, int) {
            const float* f = c.in(in) + m * height * width;
            float* o = c.out(out) + m * oh * ow;
            for (int64_t i = 0; i < oh; i++) {
                const float *r0 = f + int64_t(y.low[size_t(i)]) * width, *r1 = f + int64_t(y.high[size_t(i)]) * width;
                const float wy = y.weight[size_t(i)];
                for (int64_t j = 0; j < ow; j++) {
                    const int64_t a = x.low[size_t(j)], b = x.high[size_t(j)];
                    const float wx = x.weight[size_t(j)];
                    if (wx == 0 && wy == 0) {  // nearest: no product, so infinities stay
                        o[i * ow + j] = r0[a];
                        continue;
                    }
                    const float top = r0[a] + (r0[b] - r0[a]) * wx, low = r1[a] + (r1[b] - r1[a]) * wx;
                    o[i * ow + j] = top + (low - top) * wy;
                }
            }
        });
    });
}

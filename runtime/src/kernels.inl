// The kernels, written over a vector type V. Each kernels_*.cpp defines V and includes this inside a namespace of its own.

typedef V::type vec;
constexpr int kLanes = V::lanes;
constexpr uint32_t kFull = (1u << kLanes) - 1;
#define ALWAYS inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")  // a loop over sums: where one is left, the compiler keeps all sums in memory

static ALWAYS uint32_t first_lanes(int n) { return n >= kLanes ? kFull : (1u << n) - 1; }

static ALWAYS vec clamp(vec v, vec low, vec high) { return V::min(high, V::max(low, v)); }

// ---- R rows by T vectors of sums in registers -----------------------------------------------------------------

// sum[r][t] += *weights[r] * x[t]. A processor loads at most one vector for each multiplication, so every load must serve
// several of them.
template <int R, int T>
static ALWAYS void add_products(const float* const* weights, const float* x, vec (&sum)[R][T]) {
    constexpr int spare = V::registers - R * T;  // registers that hold no sums
    if constexpr (T < spare) {                   // all of x fits beside one weight
        vec v[T];
        UNROLL for (int t = 0; t < T; t++) v[t] = V::load(x + t * kLanes);
        UNROLL for (int r = 0; r < R; r++) {
            const vec w = V::set1(*weights[r]);
            UNROLL for (int t = 0; t < T; t++) sum[r][t] = V::fma(w, v[t], sum[r][t]);
        }
    } else {  // one vector of x, as many weights as fit, and the others are read where they are multiplied
        constexpr int held = R < spare ? R : spare - 1;
        vec w[R];
        UNROLL for (int r = 0; r < held; r++) w[r] = V::set1(*weights[r]);
        UNROLL for (int t = 0; t < T; t++) {
            const vec v = V::load(x + t * kLanes);
            UNROLL for (int r = 0; r < held; r++) sum[r][t] = V::fma(w[r], v, sum[r][t]);
            UNROLL for (int r = held; r < R; r++) sum[r][t] = V::fma_from(weights[r], v, sum[r][t]);
        }
    }
}

// ---- sparse rows: T vectors of pixels, one output channel at a time -------------------------------------------

template <int T>
static void sparse_rows(const Row* rows, size_t n, const Entry* entry, const char* in, float* out, const float* residual,
                        const Epilogue& e) {
    const vec low = V::set1(e.low), high = V::set1(e.high);
    for (size_t i = 0; i < n; i++) {
        const size_t row = rows[i].row;
        float* o = out + row * kTile;
        vec sum[T];
        if (e.first) {
            const vec b = V::set1(e.row_bias ? e.row_bias[row] : 0.f);
            for (int t = 0; t < T; t++) sum[t] = b;
        } else {
            for (int t = 0; t < T; t++) sum[t] = V::load(o + t * kLanes);
        }
        for (const Entry* end = entry + rows[i].count; entry != end; entry++) {
            uint32_t offset;
            const vec w = V::set1_entry(entry, &offset);
            const float* x = reinterpret_cast<const float*>(in + offset);
            for (int t = 0; t < T; t++) sum[t] = V::fma(w, V::load(x + t * kLanes), sum[t]);
        }
        if (e.last) {
            if (residual) {
                const float* r = residual + row * kTile;
                for (int t = 0; t < T; t++) sum[t] = V::add(sum[t], V::load(r + t * kLanes));
            }
            for (int t = 0; t < T; t++) sum[t] = clamp(sum[t], low, high);
        }
        for (int t = 0; t < T; t++) V::store(o + t * kLanes, sum[t]);
    }
}

template <int T>
static void block_rows(const Row* rows, size_t n, const BlockEntry* entry, const char* in, float* out,
                       const float* residual, const Epilogue& e) {
    const vec low = V::set1(e.low), high = V::set1(e.high);
    for (size_t i = 0; i < n; i++) {
        const size_t row = rows[i].row;
        float* o = out + row * kTile;
        vec sum[4][T];
        if (e.first) {
            for (int r = 0; r < 4; r++) {
                const vec b = V::set1(e.row_bias ? e.row_bias[row + r] : 0.f);
                for (int t = 0; t < T; t++) sum[r][t] = b;
            }
        } else {
            for (int r = 0; r < 4; r++)
                for (int t = 0; t < T; t++) sum[r][t] = V::load(o + r * kTile + t * kLanes);
        }
        for (const BlockEntry* end = entry + rows[i].count; entry != end; entry++) {
            const float* x = reinterpret_cast<const float*>(in + entry->offset);
            const float* weights[4] = {entry->value, entry->value + 1, entry->value + 2, entry->value + 3};
            add_products<4, T>(weights, x, sum);
        }
        if (e.last) {
            if (residual) {
                const float* p = residual + row * kTile;
                for (int r = 0; r < 4; r++)
                    for (int t = 0; t < T; t++) sum[r][t] = V::add(sum[r][t], V::load(p + r * kTile + t * kLanes));
            }
            for (int r = 0; r < 4; r++)
                for (int t = 0; t < T; t++) sum[r][t] = clamp(sum[r][t], low, high);
        }
        for (int r = 0; r < 4; r++)
            for (int t = 0; t < T; t++) V::store(o + r * kTile + t * kLanes, sum[r][t]);
    }
}

template <int T>
static void sparse_width(int width, const Row* rows, size_t n, const Entry* entries, const char* in, float* out,
                         const float* residual, const Epilogue& e) {
    if (width == T) return sparse_rows<T>(rows, n, entries, in, out, residual, e);
    if constexpr (T > 1) sparse_width<T - 1>(width, rows, n, entries, in, out, residual, e);
}

template <int T>
static void block_width(int width, const Row* rows, size_t n, const BlockEntry* entries, const char* in, float* out,
                        const float* residual, const Epilogue& e) {
    if (width == T) return block_rows<T>(rows, n, entries, in, out, residual, e);
    if constexpr (T > 1) block_width<T - 1>(width, rows, n, entries, in, out, residual, e);
}

static void sparse(const Row* rows, size_t n, const Entry* entries, const float* in, int pixels, float* out,
                   const Epilogue& e) {
    const int vectors = (pixels + kLanes - 1) / kLanes;
    for (int v = 0; v < vectors; v += V::sparse_vectors) {
        const int width = vectors - v < V::sparse_vectors ? vectors - v : V::sparse_vectors;
        sparse_width<V::sparse_vectors>(width, rows, n, entries, reinterpret_cast<const char*>(in + v * kLanes),
                                        out + v * kLanes, e.residual ? e.residual + v * kLanes : nullptr, e);
    }
}

static void block4(const Row* rows, size_t n, const BlockEntry* entries, const float* in, int pixels, float* out,
                   const Epilogue& e) {
    const int vectors = (pixels + kLanes - 1) / kLanes;
    for (int v = 0; v < vectors; v += V::block_vectors) {
        const int width = vectors - v < V::block_vectors ? vectors - v : V::block_vectors;
        block_width<V::block_vectors>(width, rows, n, entries, reinterpret_cast<const char*>(in + v * kLanes),
                                      out + v * kLanes, e.residual ? e.residual + v * kLanes : nullptr, e);
    }
}

// ---- dense rows: R output rows by T vectors in registers ------------------------------------------------------

// Weight (r, k) of the left matrix: rows `stride` apart, or in panels of four rows, column by column, `stride` apart.
template <bool Panels>
static ALWAYS const float* left(const float* a, size_t stride, int r, int k) {
    return Panels ? a + size_t(r / 4) * stride + size_t(k) * 4 + r % 4 : a + size_t(r) * stride + k;
}

template <bool Panels, int R, int T>
static void gemm_rows(const float* a, size_t a_stride, int depth, const float* b, float* c, size_t c_stride,
                      uint32_t last_mask, const float* row_bias, const float* column_bias, const float* residual,
                      const Epilogue& e) {
    vec sum[R][T];
    if (e.first) {
        UNROLL for (int r = 0; r < R; r++) {
            const vec bias = V::set1(row_bias ? row_bias[r] : 0.f);
            UNROLL for (int t = 0; t < T; t++) sum[r][t] = bias;
        }
        if (column_bias)
            UNROLL for (int t = 0; t < T; t++) {
                const vec v = V::mask_load(column_bias + t * kLanes, t == T - 1 ? last_mask : kFull);
                UNROLL for (int r = 0; r < R; r++) sum[r][t] = V::add(sum[r][t], v);
            }
    } else {
        UNROLL for (int r = 0; r < R; r++)
            UNROLL for (int t = 0; t < T; t++)
                sum[r][t] = t == T - 1 ? V::mask_load(c + r * c_stride + t * kLanes, last_mask)
                                       : V::loadu(c + r * c_stride + t * kLanes);
    }
    for (int k = 0; k < depth; k++) {
        const float* row = b + size_t(k) * kTile;
        if constexpr (Panels)
            if (k % 4 == 0)  // the next rows: a cache line of each panel
                for (int r = 0; r < R; r += 4) __builtin_prefetch(left<true>(a, a_stride, r + R, k), 0, 3);
        const float* weights[R];
        UNROLL for (int r = 0; r < R; r++) weights[r] = left<Panels>(a, a_stride, r, k);
        add_products<R, T>(weights, row, sum);
    }
    const vec low = V::set1(e.low), high = V::set1(e.high);
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int t = 0; t < T; t++) {
            const uint32_t m = t == T - 1 ? last_mask : kFull;
            if (e.last) {
                if (residual) sum[r][t] = V::add(sum[r][t], V::mask_load(residual + r * e.residual_stride + t * kLanes, m));
                sum[r][t] = clamp(sum[r][t], low, high);
            }
            if (t == T - 1)
                V::mask_store(c + r * c_stride + t * kLanes, sum[r][t], m);
            else
                V::storeu(c + r * c_stride + t * kLanes, sum[r][t]);
        }
}

template <bool Panels>
static constexpr int gemm_vectors() {
    return kLanes == 16 ? 7 : Panels ? 3 : 2;
}

template <bool Panels>
static constexpr int gemm_height(int width) {  // rows that fill the registers beside `width` vectors
    if (Panels) return kLanes == 16 && width <= 3 ? (width == 3 ? 8 : 12) : 4;
    if (kLanes == 16) return width >= 6 ? 4 : width == 5 ? 5 : width == 4 ? 6 : width == 3 ? 8 : 12;
    return width == 2 ? 6 : 8;
}

template <bool Panels, int R, int T>
static void gemm_height_of(int rows, const float* a, size_t a_stride, int depth, const float* b, float* c,
                           size_t c_stride, uint32_t m, const float* rb, const float* cb, const float* res,
                           const Epilogue& e) {
    if (rows == R) return gemm_rows<Panels, R, T>(a, a_stride, depth, b, c, c_stride, m, rb, cb, res, e);
    if constexpr (R > 1) gemm_height_of<Panels, R - 1, T>(rows, a, a_stride, depth, b, c, c_stride, m, rb, cb, res, e);
}

template <bool Panels, int T>
static void gemm_width(int width, const float* a, size_t a_stride, int rows, int depth, const float* b, float* c,
                       size_t c_stride, uint32_t m, const float* cb, const float* res, const Epilogue& e) {
    if (width == T) {
        constexpr int height = gemm_height<Panels>(T);
        for (int r = 0; r < rows; r += height) {
            const int now = rows - r < height ? rows - r : height;
            gemm_height_of<Panels, height, T>(now, left<Panels>(a, a_stride, r, 0), a_stride, depth, b, c + r * c_stride,
                                              c_stride, m, e.row_bias ? e.row_bias + r : nullptr, cb,
                                              res ? res + r * e.residual_stride : nullptr, e);
        }
        return;
    }
    if constexpr (T > 1) gemm_width<Panels, T - 1>(width, a, a_stride, rows, depth, b, c, c_stride, m, cb, res, e);
}

template <bool Panels>
static void gemm_of(const float* a, size_t a_stride, int rows, int depth, const float* b, int columns, float* c,
                    size_t c_stride, const Epilogue& e) {
    constexpr int most = gemm_vectors<Panels>();
    for (int j = 0; j < columns; j += most * kLanes) {
        const int now = columns - j < most * kLanes ? columns - j : most * kLanes;
        const int width = (now + kLanes - 1) / kLanes;
        gemm_width<Panels, most>(width, a, a_stride, rows, depth, b + j, c + j, c_stride,
                                 first_lanes(now - (width - 1) * kLanes), e.column_bias ? e.column_bias + j : nullptr,
                                 e.residual ? e.residual + j : nullptr, e);
    }
}

static void gemm(const float* a, size_t a_stride, int rows, int depth, const float* b, int columns, float* c,
                 size_t c_stride, const Epilogue& e) {
    gemm_of<false>(a, a_stride, rows, depth, b, columns, c, c_stride, e);
}

static void panels(const float* a, int rows, int depth, const float* b, int columns, float* c, size_t c_stride,
                   const Epilogue& e) {
    gemm_of<true>(a, size_t(depth) * 4, rows, depth, b, columns, c, c_stride, e);
}

// ---- windows --------------------------------------------------------------------------------------------------

// The numbers p[0], p[Step], ... of the lanes in the mask; `fill` elsewhere.
template <int Step>
static ALWAYS vec lanes_of(vec fill, const float* p, uint32_t mask) {
    if constexpr (Step == 1) return V::mask_load_over(fill, p, mask);
    return V::evens(V::mask_load_over(fill, p, mask & kFull), V::mask_load_over(fill, p + kLanes, mask >> kLanes));
}

template <int Step>
static ALWAYS vec lanes_of(const float* p, uint32_t mask) {  // zeros elsewhere
    if constexpr (Step == 1) return V::mask_load(p, mask);
    return V::evens(V::mask_load(p, mask & kFull), V::mask_load(p + kLanes, mask >> kLanes));
}

// A tile's border lies in tiles that another core may just have written. Such lines take long to come, and few channels
// fit in the window in which a processor looks ahead by itself.
constexpr int kAhead = 8;  // channels

static ALWAYS void fetch_lines(const Gathering& from, const float* source) {
    for (uint32_t i = 0; i < from.line_count; i++) __builtin_prefetch(source + from.lines[i], 0, 3);
}

// Packs C channels: what a move says is read once for all of them.
template <int Step, int C>
static void pack_channels(const Gathering& from, const float* source, size_t channel_stride, float* packed) {
    const size_t step = size_t(from.taps) * kTile;
    const Move *masked = from.moves + from.whole, *over = masked + from.masked, *end = over + from.over;
    for (const Move* m = from.moves; m != masked; m++) {
        const float* x = source + m->offset;
        float* to = packed + m->to;
        for (int c = 0; c < C; c++, x += channel_stride, to += step)
            V::store(to, Step == 1 ? V::loadu(x) : V::evens(V::loadu(x), V::loadu(x + kLanes)));
    }
    for (const Move* m = masked; m != over; m++) {
        const float* x = source + m->offset;
        float* to = packed + m->to;
        for (int c = 0; c < C; c++, x += channel_stride, to += step) V::store(to, lanes_of<Step>(x, m->mask));
    }
    for (const Move* m = over; m != end; m++) {  // lanes that are zero so far
        const float* x = source + m->offset;
        float* to = packed + m->to;
        for (int c = 0; c < C; c++, x += channel_stride, to += step)
            V::store(to, V::add(V::load(to), lanes_of<Step>(x, m->mask)));
    }
}

template <int Step>
static void pack_step(const Gathering& from, const float* source, size_t channel_stride, int channels, float* packed) {
    const size_t step = size_t(from.taps) * kTile;
    int c = 0;
    for (; c + 4 <= channels; c += 4, source += 4 * channel_stride, packed += 4 * step) {
        for (int i = 0; i < 4; i++) fetch_lines(from, source + (kAhead + i) * channel_stride);
        pack_channels<Step, 4>(from, source, channel_stride, packed);
    }
    for (; c < channels; c++, source += channel_stride, packed += step)
        pack_channels<Step, 1>(from, source, channel_stride, packed);
}

static void pack(const Gathering& from, const float* source, size_t channel_stride, int channels, float* packed) {
    if (from.step == 1) return pack_step<1>(from, source, channel_stride, channels, packed);
    pack_step<2>(from, source, channel_stride, channels, packed);
}

template <Window kind, int Step, int C>
static void window_channels(const Gathering& from, const float* source, size_t channel_stride, const float* weights,
                            const float* scale, const float* bias, float low, float high, float* out) {
    const vec lowest = V::set1(-__builtin_inff());
    for (int v = 0; v < from.vectors; v++) {
        vec sum[C];
        for (int c = 0; c < C; c++)
            sum[c] = kind == Window::maximum ? lowest : V::set1(kind == Window::weighted && bias ? bias[c] : 0.f);
        for (int tap = 0; tap < from.taps; tap++) {
            const uint32_t* start = from.start + size_t(tap) * from.vectors + v;
            const float* w = kind == Window::weighted ? weights + tap * 8 : nullptr;
            // Nearly always one segment. Unrolled, so that the sums stay in registers.
            for (const Segment *s = from.segments + start[0], *end = from.segments + start[1]; s != end; s++) {
                const float* x = source + s->offset;
                const uint32_t mask = s->mask;
#pragma GCC unroll 8
                for (int c = 0; c < C; c++, x += channel_stride) {
                    if (kind == Window::maximum)
                        sum[c] = V::max(sum[c], lanes_of<Step>(lowest, x, mask));
                    else if (kind == Window::weighted)
                        sum[c] = V::fma(V::set1(w[c]), lanes_of<Step>(x, mask), sum[c]);
                    else
                        sum[c] = V::add(sum[c], lanes_of<Step>(x, mask));
                }
            }
        }
        for (int c = 0; c < C; c++) {
            vec r = sum[c];
            if (kind == Window::sum && scale) r = V::mul(r, V::load(scale + v * kLanes));
            V::store(out + c * kTile + v * kLanes, clamp(r, V::set1(low), V::set1(high)));
        }
    }
}

template <Window kind, int Step>
static void window_step(const Gathering& from, const float* source, size_t channel_stride, int channels,
                      const float* weights, const float* scale, const float* bias, float low, float high, float* out) {
    for (int c = 0; c < channels; c++) {
        // weights[channel / 8][tap][channel % 8]
        const float* w = weights ? weights + size_t(c / 8) * from.taps * 8 + c % 8 : nullptr;
        const float *x = source + c * channel_stride, *b = bias ? bias + c : nullptr;
        float* o = out + size_t(c) * kTile;
        if (c % 8 == 0 && c + 8 <= channels) {
            for (int next = 8; next < 16; next++) fetch_lines(from, x + next * channel_stride);
            window_channels<kind, Step, 8>(from, x, channel_stride, w, scale, b, low, high, o);
            c += 7;
        } else {
            window_channels<kind, Step, 1>(from, x, channel_stride, w, scale, b, low, high, o);
        }
    }
}

template <Window kind>
static void window_of(const Gathering& from, const float* source, size_t channel_stride, int channels,
                      const float* weights, const float* scale, const float* bias, float low, float high, float* out) {
    if (from.step == 1)
        window_step<kind, 1>(from, source, channel_stride, channels, weights, scale, bias, low, high, out);
    else
        window_step<kind, 2>(from, source, channel_stride, channels, weights, scale, bias, low, high, out);
}

static void window(Window kind, const Gathering& from, const float* source, size_t channel_stride, int channels,
                   const float* weights, const float* scale, const float* bias, float low, float high, float* out) {
    if (kind == Window::weighted)
        window_of<Window::weighted>(from, source, channel_stride, channels, weights, scale, bias, low, high, out);
    else if (kind == Window::maximum)
        window_of<Window::maximum>(from, source, channel_stride, channels, weights, scale, bias, low, high, out);
    else
        window_of<Window::sum>(from, source, channel_stride, channels, weights, scale, bias, low, high, out);
}

// ---- functions of one number ----------------------------------------------------------------------------------

static ALWAYS vec exponential(vec x) {  // 2^n e^r with |r| <= ln2/2, a polynomial of degree 6 for e^r
    x = V::min(V::set1(88.72283f), V::max(V::set1(-104.f), x));
    const vec n = V::round(V::mul(x, V::set1(1.44269504f)));
    vec r = V::fma(n, V::set1(-0.693359375f), x);
    r = V::fma(n, V::set1(2.12194440e-4f), r);
    vec p = V::set1(1.f / 720);
    p = V::fma(p, r, V::set1(1.f / 120));
    p = V::fma(p, r, V::set1(1.f / 24));
    p = V::fma(p, r, V::set1(1.f / 6));
    p = V::fma(p, r, V::set1(.5f));
    p = V::fma(p, r, V::set1(1.f));
    p = V::fma(p, r, V::set1(1.f));
    return V::scale2(p, n);
}

static ALWAYS vec sigmoid(vec x) {
    const vec one = V::set1(1.f);
    return V::div(one, V::add(one, exponential(V::sub(V::set1(0.f), x))));
}

static ALWAYS vec hyperbolic_tangent(vec x) {
    const vec a = V::abs(x), one = V::set1(1.f);
    // an odd series where 1 - 2/(e^2a + 1) would cancel
    const vec s = V::mul(x, x);
    vec p = V::set1(-5.70498872745e-3f);
    p = V::fma(p, s, V::set1(2.06390887954e-2f));
    p = V::fma(p, s, V::set1(-5.37397155531e-2f));
    p = V::fma(p, s, V::set1(1.33314422036e-1f));
    p = V::fma(p, s, V::set1(-3.33332819422e-1f));
    const vec small = V::fma(V::mul(p, s), x, x);
    const vec e = exponential(V::add(a, a));
    const vec big = V::sub(one, V::div(V::set1(2.f), V::add(e, one)));
    return V::less(a, V::set1(.625f), small, V::copysign(big, x));
}

static ALWAYS vec error_function(vec x) {  // Abramowitz and Stegun 7.1.26, below .5 the series
    const vec a = V::abs(x), one = V::set1(1.f);
    const vec t = V::div(one, V::fma(V::set1(.3275911f), a, one));
    vec p = V::set1(1.061405429f);
    p = V::fma(p, t, V::set1(-1.453152027f));
    p = V::fma(p, t, V::set1(1.421413741f));
    p = V::fma(p, t, V::set1(-.284496736f));
    p = V::fma(p, t, V::set1(.254829592f));
    p = V::mul(p, t);
    const vec s = V::mul(x, x);
    const vec big = V::copysign(V::sub(one, V::mul(p, exponential(V::sub(V::set1(0.f), s)))), x);
    vec q = V::set1(-1.f / 1320);
    q = V::fma(q, s, V::set1(1.f / 216));
    q = V::fma(q, s, V::set1(-1.f / 42));
    q = V::fma(q, s, V::set1(.1f));
    q = V::fma(q, s, V::set1(-1.f / 3));
    q = V::fma(q, s, one);
    const vec small = V::mul(V::mul(q, x), V::set1(1.12837917f));
    return V::less(a, V::set1(.5f), small, big);
}

template <Activation kind>
static ALWAYS vec activated(vec x, vec low, vec high) {
    const vec one = V::set1(1.f), half = V::set1(.5f), zero = V::set1(0.f);
    switch (kind) {
        case Activation::clamp: return clamp(x, low, high);
        case Activation::sigmoid: return sigmoid(x);
        case Activation::tanh: return hyperbolic_tangent(x);
        case Activation::silu: return V::mul(x, sigmoid(x));
        case Activation::gelu:
            return V::mul(V::mul(half, x), V::add(one, error_function(V::mul(x, V::set1(.70710678f)))));
        case Activation::gelu_tanh: {
            const vec cube = V::mul(V::mul(x, x), x);
            const vec u = V::mul(V::set1(.79788456f), V::fma(V::set1(.044715f), cube, x));
            return V::mul(V::mul(half, x), V::add(one, hyperbolic_tangent(u)));
        }
        case Activation::erf: return error_function(x);
        case Activation::exp: return exponential(x);
        case Activation::sqrt: return V::sqrt(x);
        case Activation::hard_sigmoid: return V::min(one, V::max(zero, V::fma(x, low, high)));
        case Activation::hard_swish: return V::mul(x, V::min(one, V::max(zero, V::fma(x, V::set1(1.f / 6), half))));
        case Activation::leaky_relu: return V::less(x, zero, V::mul(x, low), x);
        case Activation::neg: return V::sub(zero, x);
        case Activation::abs: return V::abs(x);
        case Activation::reciprocal: return V::div(one, x);
        case Activation::elu: return V::less(x, zero, V::mul(low, V::sub(exponential(x), one)), x);
        default: return x;
    }
}

template <Activation kind>
static void activate_all(const float* in, float* out, size_t n, float low_, float high_) {
    const vec low = V::set1(low_), high = V::set1(high_);
    size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) V::storeu(out + i, activated<kind>(V::loadu(in + i), low, high));
    if (i < n) {
        const uint32_t m = first_lanes(int(n - i));
        V::mask_store(out + i, activated<kind>(V::mask_load(in + i, m), low, high), m);
    }
}

static void activate(Activation kind, const float* in, float* out, size_t n, float low, float high) {
    switch (kind) {
#define CASE(k) case Activation::k: return activate_all<Activation::k>(in, out, n, low, high);
        CASE(none) CASE(clamp) CASE(sigmoid) CASE(tanh) CASE(silu) CASE(gelu) CASE(gelu_tanh) CASE(erf) CASE(exp)
        CASE(sqrt) CASE(hard_sigmoid) CASE(hard_swish) CASE(leaky_relu) CASE(neg) CASE(abs) CASE(reciprocal) CASE(elu)
#undef CASE
        case Activation::log:
            for (size_t i = 0; i < n; i++) out[i] = __builtin_logf(in[i]);
            return;
    }
}

// ---- functions of two -----------------------------------------------------------------------------------------

template <Arithmetic kind>
static ALWAYS vec combined(vec a, vec b) {
    switch (kind) {
        case Arithmetic::add: return V::add(a, b);
        case Arithmetic::sub: return V::sub(a, b);
        case Arithmetic::mul: return V::mul(a, b);
        case Arithmetic::div: return V::div(a, b);
        case Arithmetic::max: return V::max(a, b);
        default: return V::min(a, b);
    }
}

template <Arithmetic kind>
static void arithmetic_all(const float* a, const float* b, float* out, size_t n, int mode) {
    const vec a1 = V::set1(a[0]), b1 = V::set1(b[0]);
    size_t i = 0;
    for (; i + kLanes <= n; i += kLanes)
        V::storeu(out + i, combined<kind>(mode == 1 ? a1 : V::loadu(a + i), mode == 2 ? b1 : V::loadu(b + i)));
    if (i < n) {
        const uint32_t m = first_lanes(int(n - i));
        V::mask_store(out + i, combined<kind>(mode == 1 ? a1 : V::mask_load(a + i, m),
                                              mode == 2 ? b1 : V::mask_load(b + i, m)), m);
    }
}

static void arithmetic(Arithmetic kind, const float* a, const float* b, float* out, size_t n, int mode) {
    if (!n) return;
    switch (kind) {
#define CASE(k) case Arithmetic::k: return arithmetic_all<Arithmetic::k>(a, b, out, n, mode);
        CASE(add) CASE(sub) CASE(mul) CASE(div) CASE(max) CASE(min)
#undef CASE
        case Arithmetic::pow:
            for (size_t i = 0; i < n; i++) out[i] = __builtin_powf(a[mode == 1 ? 0 : i], b[mode == 2 ? 0 : i]);
            return;
    }
}

// ---- rows -----------------------------------------------------------------------------------------------------

static void softmax(const float* in, float* out, size_t n) {
    vec top = V::set1(-__builtin_inff());
    const vec lowest = top;
    size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) top = V::max(top, V::loadu(in + i));
    if (i < n) top = V::max(top, V::mask_load_over(lowest, in + i, first_lanes(int(n - i))));
    const vec m = V::set1(V::highest(top));
    vec total = V::set1(0.f);
    for (i = 0; i + kLanes <= n; i += kLanes) {
        const vec e = exponential(V::sub(V::loadu(in + i), m));
        V::storeu(out + i, e);
        total = V::add(total, e);
    }
    float sum = V::sum(total);
    if (i < n) {
        const uint32_t mask = first_lanes(int(n - i));
        V::mask_store(out + i, exponential(V::sub(V::mask_load(in + i, mask), m)), mask);
        for (; i < n; i++) sum += out[i];
    }
    arithmetic_all<Arithmetic::div>(out, &sum, out, n, 2);
}

static void normalise(const float* in, float* out, size_t n, const float* scale, const float* bias, float epsilon,
                      bool centred) {
    float mean = 0;
    size_t i = 0;
    if (centred) {
        vec s = V::set1(0.f);
        for (; i + kLanes <= n; i += kLanes) s = V::add(s, V::loadu(in + i));
        mean = V::sum(s);
        for (; i < n; i++) mean += in[i];
        mean /= float(n);
    }
    const vec m = V::set1(mean);
    vec s = V::set1(0.f);
    for (i = 0; i + kLanes <= n; i += kLanes) {
        const vec d = V::sub(V::loadu(in + i), m);
        s = V::fma(d, d, s);
    }
    float variance = V::sum(s);
    for (; i < n; i++) variance += (in[i] - mean) * (in[i] - mean);
    const float inverse = 1.f / __builtin_sqrtf(variance / float(n) + epsilon);
    const vec k = V::set1(inverse);
    for (i = 0; i < n; i += kLanes) {
        const uint32_t mask = first_lanes(n - i >= size_t(kLanes) ? kLanes : int(n - i));
        vec y = V::mul(V::sub(V::mask_load(in + i, mask), m), k);
        if (scale) y = V::mul(y, V::mask_load(scale + i, mask));
        if (bias) y = V::add(y, V::mask_load(bias + i, mask));
        V::mask_store(out + i, y, mask);
    }
}

static void transpose(const float* in, size_t stride, int depth, int columns, float* packed) {
    for (int i0 = 0; i0 < depth; i0 += 16) {
        const int now = depth - i0 < 16 ? depth - i0 : 16;
        for (int j = 0; j < columns; j++) {
            const float* x = in + j * stride + i0;
            for (int i = 0; i < now; i++) packed[size_t(i0 + i) * kTile + j] = x[i];
        }
    }
}

// Four rows at a time, each summed in the order of its entries, as the kernel for many pixels does.
static void dots(const Entry* entries, const size_t* start, size_t rows, const float* in, float* sums) {
    const char* x = reinterpret_cast<const char*>(in);
    auto add = [x](const Entry& e, float sum) { return sum + e.value * *reinterpret_cast<const float*>(x + e.offset); };
    size_t r = 0;
    for (; r + 4 <= rows; r += 4) {
        const Entry* e[4];
        size_t n[4], common = ~size_t(0);
        float s[4];
        for (int j = 0; j < 4; j++) {
            e[j] = entries + start[r + j];
            n[j] = start[r + j + 1] - start[r + j];
            common = n[j] < common ? n[j] : common;
            s[j] = sums[r + j];
        }
        for (size_t i = 0; i < common; i++)
            for (int j = 0; j < 4; j++) s[j] = add(e[j][i], s[j]);
        for (int j = 0; j < 4; j++) {
            for (size_t i = common; i < n[j]; i++) s[j] = add(e[j][i], s[j]);
            sums[r + j] = s[j];
        }
    }
    for (; r < rows; r++)
        for (size_t i = start[r]; i < start[r + 1]; i++) sums[r] = add(entries[i], sums[r]);
}

static void panel_dot(const float* a, const float* x, int depth, float* out) {
    vec s[4] = {V::set1(0.f), V::set1(0.f), V::set1(0.f), V::set1(0.f)};
    const int n = depth * 4;
    int i = 0;
    for (; i + 4 * kLanes <= n; i += 4 * kLanes)
        for (int j = 0; j < 4; j++) s[j] = V::fma(V::loadu(a + i + j * kLanes), V::loadu(x + i + j * kLanes), s[j]);
    for (; i < n; i += kLanes) {
        const uint32_t m = first_lanes(n - i);
        s[0] = V::fma(V::mask_load(a + i, m), V::mask_load(x + i, m), s[0]);
    }
    float sums[kLanes];
    V::storeu(sums, V::add(V::add(s[0], s[1]), V::add(s[2], s[3])));
    for (int r = 0; r < 4; r++) {
        out[r] = 0;
        for (int j = r; j < kLanes; j += 4) out[r] += sums[j];
    }
}

static const Kernels table = {kName, kLanes, sparse, block4, gemm, panels, pack, window, activate, arithmetic, softmax, normalise,
                              transpose, dots, panel_dot};

#include "weights.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>

void Freed::operator()(float* p) const { std::free(p); }

Floats aligned_floats(size_t n) {
    size_t bytes = (n * sizeof(float) + 127) / 64 * 64;
    void* p = std::aligned_alloc(64, bytes);
    if (!p) throw std::bad_alloc();
    std::memset(p, 0, bytes);
    return Floats(static_cast<float*>(p));
}

Weights::Weights(const float* matrix, int rows, int columns, int taps, const float* bias_, Method method, int block_,
                 Layout layout)
    : rows(rows), columns(columns), taps(taps), method(method), layout(layout), nonzeros(0) {
    if (rows < 1 || columns < 1 || taps < 1 || columns % taps) throw std::invalid_argument("weights: bad shape");
    if (method == Method::block4 && rows % 4) throw std::invalid_argument("weights: rows are not a multiple of 4");
    block = std::min(columns, std::max(1, block_ / taps) * taps);
    blocks = (columns + block - 1) / block;
    chunk = std::min(256, std::max(128, (rows + 1) / 2));  // rows of equal counts follow each other in a chunk
    chunk = (chunk + 3) / 4 * 4;
    chunks = (rows + chunk - 1) / chunk;
    if (bias_) bias.assign(bias_, bias_ + rows);
    const size_t all = size_t(rows) * columns;
    for (size_t i = 0; i < all; i++) nonzeros += matrix[i] != 0;
    if (method != Method::dense)
        layout == Layout::vectors ? pack_rows(matrix) : pack_stream(matrix);
    else
        layout == Layout::pixels ? pack_panels(matrix) : pack_transposed(matrix);
}

void Weights::pack_panels(const float* matrix) {
    const size_t high = size_t(rows + 3) / 4 * 4;
    dense = aligned_floats(high * columns);
    for (int c0 = 0; c0 < columns; c0 += block) {
        const int depth = std::min(block, columns - c0);
        for (int r = 0; r < rows; r++) {
            float* to = dense.get() + size_t(c0) * high + size_t(r / 4) * depth * 4 + r % 4;
            const float* from = matrix + size_t(r) * columns + c0;
            for (int c = 0; c < depth; c++) to[size_t(c) * 4] = from[c];
        }
    }
}

void Weights::pack_transposed(const float* matrix) {
    const int tiles = (rows + kTile - 1) / kTile;
    dense = aligned_floats(size_t(tiles) * columns * kTile);
    for (int r = 0; r < rows; r++) {
        float* to = dense.get() + size_t(r / kTile) * columns * kTile + r % kTile;
        for (int c = 0; c < columns; c++) to[size_t(c) * kTile] = matrix[size_t(r) * columns + c];
    }
}

void Weights::pack_rows(const float* matrix) {
    entries.reserve(nonzeros);
    for (int r = 0; r < rows; r++) {
        entry_start.push_back(entries.size());
        for (int c = 0; c < columns; c++) {
            const float w = matrix[size_t(r) * columns + c];
            if (w != 0) entries.push_back({w, uint32_t(c * sizeof(float))});
        }
    }
    entry_start.push_back(entries.size());
}

void Weights::pack_stream(const float* matrix) {
    const int high = method == Method::block4 ? 4 : 1;
    auto used = [&](int r, int c) {
        for (int i = 0; i < high; i++)
            if (matrix[size_t(r + i) * columns + c] != 0) return true;
        return false;
    };
    if (high == 1) entries.reserve(nonzeros);
    std::vector<std::pair<uint32_t, uint32_t>> order;  // entries, row
    for (int ch = 0; ch < chunks; ch++)
        for (int b = 0; b < blocks; b++) {
            row_start.push_back(row_list.size());
            entry_start.push_back(high == 4 ? block_entries.size() : entries.size());
            const int r0 = ch * chunk, r1 = std::min(rows, r0 + chunk), c0 = b * block, c1 = std::min(columns, c0 + block);
            order.clear();
            for (int r = r0; r < r1; r += high) {
                uint32_t n = 0;
                for (int c = c0; c < c1; c++) n += used(r, c);
                // The first and the last block visit every row: one starts the sums, the other finishes them.
                if (n || b == 0 || b == blocks - 1) order.push_back({n, uint32_t(r)});
            }
            // Rows with equal counts follow each other, so the branch at a row's end is predicted.
            std::stable_sort(order.begin(), order.end(), [](auto& x, auto& y) { return x.first > y.first; });
            for (auto& o : order) {
                row_list.push_back({o.second, o.first});
                for (int c = c0; c < c1; c++) {
                    if (!used(int(o.second), c)) continue;
                    const uint32_t offset = uint32_t(c - c0) * kTile * sizeof(float);
                    const float* w = matrix + size_t(o.second) * columns + c;
                    if (high == 4)
                        block_entries.push_back({{w[0], w[size_t(columns)], w[size_t(columns) * 2], w[size_t(columns) * 3]}, offset});
                    else
                        entries.push_back({*w, offset});
                }
            }
        }
    row_start.push_back(row_list.size());
    entry_start.push_back(high == 4 ? block_entries.size() : entries.size());
    row_list.shrink_to_fit();
    block_entries.shrink_to_fit();
}

void Weights::multiply(const Kernels& k, int ch, int b, const float* packed, int pixels, int beyond, float* out,
                       Epilogue e) const {
    e.first = b == 0;
    e.last = b == blocks - 1;
    e.row_bias = bias.empty() ? nullptr : bias.data();
    e.residual_stride = kTile;
    if (method == Method::dense) {
        const int r0 = ch * chunk, n = std::min(rows - r0, chunk), c0 = b * block, depth = std::min(block, columns - c0);
        const float* a = dense.get() + size_t(c0) * ((rows + 3) / 4 * 4) + size_t(r0) * depth;
        if (e.row_bias) e.row_bias += r0;
        if (e.residual) e.residual += size_t(r0) * kTile;
        const int across = beyond ? pixels - beyond : (pixels + k.lanes - 1) / k.lanes * k.lanes;
        k.panels(a, n, depth, packed, across, out + size_t(r0) * kTile, kTile, e);
        for (int at = pixels - beyond; at < pixels; at++) multiply_pixel(k, a, n, depth, packed, at, out + size_t(r0) * kTile, e);
        return;
    }
    const size_t i = size_t(ch) * blocks + b, n = row_start[i + 1] - row_start[i];
    const Row* r = row_list.data() + row_start[i];
    if (method == Method::block4)
        k.block4(r, n, block_entries.data() + entry_start[i], packed, pixels, out, e);
    else
        k.sparse(r, n, entries.data() + entry_start[i], packed, pixels, out, e);
}

void Weights::multiply_pixel(const Kernels& k, const float* a, int n, int depth, const float* packed, int at, float* out,
                             const Epilogue& e) const {
    constexpr int piece = 256;
    float x[piece * 4];
    for (int d = 0; d < depth; d += piece) {
        const int m = std::min(piece, depth - d);
        for (int i = 0; i < m * 4; i++) x[i] = packed[size_t(d + i / 4) * kTile + at];
        const bool first = e.first && d == 0, last = e.last && d + m == depth;
        for (int r0 = 0; r0 < n; r0 += 4) {
            float sums[4];
            k.panel_dot(a + (size_t(r0) * depth + size_t(d) * 4), x, m, sums);
            for (int r = r0; r < std::min(n, r0 + 4); r++) {
                float* o = out + size_t(r) * kTile + at;
                float y = (first ? (e.row_bias ? e.row_bias[r] : 0.f) : *o) + sums[r - r0];
                if (last) {
                    if (e.residual) y += e.residual[size_t(r) * kTile + at];
                    y = y < e.low ? e.low : y > e.high ? e.high : y;
                }
                *o = y;
            }
        }
    }
}

size_t Weights::bytes() const {
    return bias.size() * 4 + row_list.size() * sizeof(Row) + entries.size() * sizeof(Entry) +
           block_entries.size() * sizeof(BlockEntry) + (dense ? size_t(rows) * columns * 4 : 0);
}

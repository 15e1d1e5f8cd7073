// The weights of one convolution or linear layer, in the order its kernel reads them.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "kernels.h"

struct Freed {
    void operator()(float* p) const;
};
typedef std::unique_ptr<float[], Freed> Floats;
Floats aligned_floats(size_t n);  // 64-byte aligned, zeroed

enum class Method : int { dense, sparse, block4 };
// What weights are multiplied with: maps, rows of tokens, or so few tokens that each is a vector of its own.
enum class Layout : int { pixels, tokens, vectors };
constexpr int kFewTokens = 2;

// A matrix of rows (output channels) x columns (input channel, tap), cut in blocks of columns and chunks of rows.
struct Weights {
    int rows, columns, taps;
    Method method;
    Layout layout;
    int block;   // columns of one block, a multiple of taps
    int chunk;   // rows of one chunk
    int blocks, chunks;
    size_t nonzeros;
    // True for weights that no other method would be tried for: sums may then be taken in another order.
    bool only_dense() const { return method == Method::dense && double(nonzeros) > .6 * double(rows) * columns; }
    Floats dense;  // for pixels, block by block in panels of four rows; else tiles of the transpose
    std::vector<float> bias;  // empty, or one per row
    std::vector<Row> row_list;
    std::vector<Entry> entries;  // for vectors, row by row, with offsets into one of them
    std::vector<BlockEntry> block_entries;
    std::vector<size_t> row_start, entry_start;  // per (chunk, block), and the end; for vectors, entries per row

    Weights(const float* matrix, int rows, int columns, int taps, const float* bias, Method method, int block,
            Layout layout);

    // How many of a tile's pixels, beyond whole vectors, are summed one by one: one of 7 x 7.
    int beyond(const Kernels& k, int pixels) const {
        return only_dense() && pixels > k.lanes && pixels % k.lanes <= 2 ? pixels % k.lanes : 0;
    }
    // Adds the products of one (chunk, block) with packed inputs to out, whose row 0 is the layer's row 0. The last
    // `beyond` of the pixels are summed one by one.
    void multiply(const Kernels& k, int chunk, int block, const float* packed, int pixels, int beyond, float* out,
                  Epilogue e) const;
    size_t bytes() const;

private:
    void pack_panels(const float* matrix);
    void pack_transposed(const float* matrix);
    void pack_rows(const float* matrix);
    void pack_stream(const float* matrix);
    // The same with `n` rows of panels for one pixel, column `at` of the packed inputs, when a vector for it alone would
    // be wasted.
    void multiply_pixel(const Kernels& k, const float* panels, int n, int depth, const float* packed, int at, float* out,
                        const Epilogue& e) const;
};
